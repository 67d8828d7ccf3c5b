"""config/slurm/zdiloco.sbatch: run with a learner and a scontrol of straw."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.commands import ROOT, faults

SCRIPT = ROOT / "config" / "slurm" / "zdiloco.sbatch"
LIMIT_S = 60

# It says that it is there, and stays until it is told to leave, or ends by itself with $ENDS.
LEARNER = """#!/bin/sh
echo "$*" >>"$CALLS"
trap 'echo left >>"$CALLS"; exit "${LEAVES:-0}"' TERM
echo up >"$GATE"
[ -z "${ENDS:-}" ] || exit "$ENDS"
read -r _ <"$NEVER" &
wait $!
wait $!
"""


def test_the_learner_it_starts_is_a_real_command() -> None:
    """With the options and settings that there are; an example with a wrong one is found."""
    (line,) = re.findall(r'^"\$zdiloco" (.*) &$', SCRIPT.read_text(), re.M)
    words = ["zdiloco", *shlex.split(line.replace("$SLURM_ARRAY_TASK_ID", "0"))]
    assert faults(words) == []
    assert faults(["zdiloco", "learner", "run.toml", "--nmae", "a"]) != []
    assert faults(["zdiloco", "learner", "run.toml", "--name", "a", "--set", "net.conect=b"]) != []
    assert faults(["zdiloco", "dance"]) != []


def test_it_is_a_script_and_asks_slurm_only_for_what_there_is() -> None:
    """Every #SBATCH line stands before the first command, else Slurm does not read it."""
    subprocess.run(["bash", "-n", SCRIPT], check=True, timeout=LIMIT_S)
    text = SCRIPT.read_text()
    assert "#SBATCH" not in text.partition("\nset -u\n")[2]
    assert len(re.findall(r"^#SBATCH --[a-z-]+(?:=\S+)?$", text, re.M)) == text.count("#SBATCH")
    where = shutil.which("shellcheck")
    if where is None and os.environ.get("CI"):
        pytest.fail("shellcheck is missing, which .ci/run should have installed")
    if where:
        done = subprocess.run([where, SCRIPT], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout


class Job:
    """The script as task 2 of array job 77, and what its learner and scontrol were told."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.calls, gate, never = folder / "calls", folder / "gate", folder / "never"
        for pipe in (gate, never):
            os.mkfifo(pipe)
        for name, text in (("learner", LEARNER), ("scontrol", '#!/bin/sh\necho "scontrol $*" >>"$CALLS"\n')):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        told = {"CALLS": str(self.calls), "GATE": str(gate), "NEVER": str(never), "ZDILOCO": str(folder / "learner")}
        slurm = {"SLURM_SUBMIT_DIR": "/home/x", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_JOB_ID": "77"}
        path = {"PATH": f"{folder}:{os.environ['PATH']}"}
        self.process = subprocess.Popen(["bash", SCRIPT], env={**path, **told, **slurm, **env}, start_new_session=True)
        self.gate, self.holder = gate, os.open(never, os.O_RDWR)

    def end(self) -> tuple[int, list[str]]:
        """Wait for its end; return exit code and calls."""
        code = self.process.wait(LIMIT_S)
        return code, self.calls.read_text().splitlines()

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)
        os.close(self.holder)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        job.close()


@pytest.mark.proc
@pytest.mark.parametrize(("leaves", "again"), [("0", ["scontrol requeue 77_2"]), ("1", [])])
def test_who_is_told_to_leave_goes_into_the_queue_again(
    tmp_path: Path, jobs: list[Job], leaves: str, again: list[str]
) -> None:
    """SIGTERM of Slurm reaches the learner; the script waits for it, and asks for a next time only if all was well."""
    jobs.append(Job(tmp_path, LEAVES=leaves))
    assert jobs[0].gate.read_text() == "up\n"
    jobs[0].process.send_signal(signal.SIGTERM)
    code, calls = jobs[0].end()
    learner = "learner /home/x/run.toml --name slurm-2 --shard 2 --set task.device=cuda:0"
    assert (code, calls) == (int(leaves), [learner, "left", *again])


@pytest.mark.proc
@pytest.mark.parametrize("ends", ["0", "2"])
def test_a_learner_that_ends_by_itself_ends_the_job(tmp_path: Path, jobs: list[Job], ends: str) -> None:
    """The run is over, or something is wrong: no next time, and Slurm sees the exit code."""
    jobs.append(Job(tmp_path, ENDS=ends))
    assert jobs[0].gate.read_text() == "up\n"
    code, calls = jobs[0].end()
    assert (code, len(calls)) == (int(ends), 1)
