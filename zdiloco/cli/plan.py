"""`zdiloco plan`: what a run will cost before it is started."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zdiloco.cli.options import log_level, overrides
from zdiloco.config import RunConfig, from_tree, load
from zdiloco.errors import ConfigError

if TYPE_CHECKING:
    from zdiloco.plan.model import Model
    from zdiloco.plan.params import Fleet, Settings


@click.command()
@click.argument("run_toml", metavar="[RUN.toml]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@overrides
@click.option("--parameters", type=float, help="Parameters of the model, such as 12e9.")
@click.option("--model", type=click.Path(path_type=Path), metavar="CONFIG.json", help="Its config.json instead.")
@click.option("--regions", type=click.IntRange(1, 1000), help="So many regions alike.  [default: 1]")
@click.option("--region", multiple=True, metavar="NAME:KEY=VALUE,...", help="One region; may be repeated. Keys: "
              "learners, step, gbit, rtt-ms, loss; and relay. The options below say what it leaves out.")  # fmt: skip
@click.option("--learners", type=int, default=2, show_default=True, help="Learners of a region.")
@click.option("--step-time", type=float, default=1.0, show_default=True, help="Seconds of an inner step.")
@click.option("--gbit", type=float, default=1.0, show_default=True, help="Gbit/s of a region's link, each way.")
@click.option("--rtt-ms", type=float, default=80.0, show_default=True, help="Its round trip, in ms.")
@click.option("--loss", type=float, default=0.0, show_default=True, help="Share of its packets that are lost.")
@click.option("--congestion", type=click.Choice(["bbr", "cubic", "reno"]), help="TCP's congestion control where "
              "packets are lost.  [default: that of this machine]")  # fmt: skip
@click.option("--relays", is_flag=True, help="Regions have relays.")
@click.option("--syncer-gbit", type=float, help="Gbit/s of the syncer's link.  [default: enough]")
@click.option("--merge-rate", type=float, help="Values that a syncer merges in a second.  [default: 1e9, two cores]")
@click.option("--egress-price", type=float, help="Price of 10^9 bytes that leave a region, or the syncer.")
@click.option("--days", type=float, default=0.0, help="Days that the run takes, for its whole bill.")
@click.option("--against", type=click.Path(path_type=Path), metavar="RUN_DIR", help="Beside what this run measured.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@log_level
def plan(as_json: bool, against: Path | None, **options: Any) -> None:
    """Plan a run: bytes and Gbit/s by role, flight times, grace, memory and disk, and what to change where it is short.

    Settings are those of RUN.toml (and --set), or the defaults; without --parameters and --model the model is that of
    its [task]. Nothing is started, measured or sent. What is counted and what is not: docs/plan.md.
    """
    from zdiloco.cli.plan_text import beside_text, plan_text
    from zdiloco.plan.answer import plan as planned

    asked = _asked(options)
    if against is not None:
        from zdiloco.plan.against import compare, measured_of
        from zdiloco.trace import read_trace

        rows = compare(measured_of(read_trace(against)), asked.fleet.regions[0], asked.settings)
        found = [{**asdict(row), "ratio": row.ratio} for row in rows]
        click.echo(json.dumps({"against": found}, indent=2) if as_json else beside_text(rows))
        return
    answer = planned(asked)
    click.echo(json.dumps(answer.to_obj(), indent=2) if as_json else plan_text(asked, answer))


def _asked(options: dict[str, Any]) -> Any:
    from zdiloco.plan.answer import Asked
    from zdiloco.plan.flight import MERGE_VALUES_S

    bounds = (("egress_price", 0.0, 1e6), ("days", 0.0, 1e5), ("merge_rate", 1.0, 1e18))
    for name, low, high in bounds:
        value = options[name]
        if value is not None and not low <= value <= high:
            raise ConfigError(f"--{name.replace('_', '-')} is {value:g}; allowed is {low:g} to {high:g}")
    path = options["run_toml"]
    config = load(path, options["overrides"]) if path else from_tree({}, options["overrides"])
    return Asked(
        fleet=_fleet(options),
        model=model_of(options, config),
        settings=settings_of(config),
        price=options["egress_price"] or 0.0,
        days=options["days"],
        merge_values_s=options["merge_rate"] or MERGE_VALUES_S,
    )


def settings_of(config: RunConfig) -> "Settings":
    from zdiloco.plan.params import Settings

    return Settings(
        sync=config.sync, learner=config.learner, merge=config.merge, net=config.net, relay=config.relay,
        checkpoint=config.checkpoint,
    )  # fmt: skip


def _fleet(options: dict[str, Any]) -> "Fleet":
    from zdiloco.doctor.kernel import read_kernel
    from zdiloco.plan.params import Fleet, Region, alike, known_congestion, region_of

    usual: Region = Region(
        name="usual", learners=options["learners"], step_s=options["step_time"], gbit_s=options["gbit"],
        rtt_s=options["rtt_ms"] / 1e3, loss=options["loss"], relay=options["relays"],
        congestion=options["congestion"] or known_congestion(read_kernel().congestion),
    )  # fmt: skip
    if options["region"] and options["regions"]:
        raise click.UsageError("--regions does not go with --region.")
    named = tuple(region_of(text, usual) for text in options["region"])
    gbit = options["syncer_gbit"]
    return Fleet(
        regions=named or tuple(alike(options["regions"] or 1, usual)), syncer_gbit_s=math.inf if gbit is None else gbit
    )


def model_of(options: dict[str, Any], config: RunConfig) -> "Model":
    from zdiloco.plan.model import of_parameters, of_sizes, sizes_of

    fragments, strategy = config.sync.num_fragments, config.learner.strategy
    if options["parameters"] is not None and options["model"] is not None:
        raise click.UsageError("--parameters does not go with --model.")
    if options["parameters"] is not None:
        return of_parameters(options["parameters"], fragments)
    if options["model"] is not None:
        return of_sizes(sizes_of(options["model"]), fragments, strategy)
    from zdiloco.train.models import ByteGPT
    from zdiloco.train.params import preset

    whole = ByteGPT(replace(preset(config.task.preset)))
    sizes = {name: values.numel() for name, values in whole.named_parameters()}
    return of_sizes(sizes, fragments, strategy)
