"""`python -m zdiloco.cli.nursery`: the process that `zdiloco demo --chaos` and the tests fork commands from."""

from zdiloco.chaos.nursery import serve
from zdiloco.cli.main import run

if __name__ == "__main__":
    serve(run)
