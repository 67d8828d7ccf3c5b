"""`zdiloco bench`: what zdiloco costs, measured on this machine."""

import json

import click

from zdiloco.cli.options import log_level


@click.group()
def bench() -> None:
    """Measure what zdiloco costs on this machine; every figure beside what it is compared with, from the same run."""


@bench.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@click.option("--steps", type=int, default=1_200, show_default=True, help="Steps of each loop that is timed.")
@click.option("--parameters", type=int, default=25_000_000, show_default=True, help="Size of the model.")
@click.option("--times", type=int, default=10, show_default=True, help="How often each disturbance is made.")
@click.option("--keys", is_flag=True, help="Encrypt everything, as net.keys does.")
@log_level
def overhead(as_json: bool, steps: int, parameters: int, times: int, keys: bool) -> int:
    """Measure how a training loop is slowed down by its learner, and held up when others die or stall.

    The loop stands in for one with an accelerator: 10 ms of compute in a step of 50 ms. The bars are meant for the
    defaults and a machine that has nothing else to do; that takes eleven minutes. Exit code 0: all bars are met.
    """
    from zdiloco.bench.overhead import Plan, measure
    from zdiloco.bench.printing import print_results
    from zdiloco.cli.signals import interrupt_on_any

    plan = Plan(steps=steps, parameters=parameters, times=times, keyed=keys)
    interrupt_on_any()
    results = list(measure(plan))
    if as_json:
        click.echo(json.dumps({"results": [result.to_obj() for result in results]}, indent=2))
        for fault in (fault for result in results for fault in result.faults):
            click.echo(f"zdiloco: not met: {fault}", err=True)
    else:
        print_results(results)
    return int(any(result.faults for result in results))
