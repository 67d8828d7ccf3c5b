"""`zdiloco doctor`: what would go wrong here, and on the road to the other side, before a run is started."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zdiloco.cli.options import log_level, overrides
from zdiloco.cli.plan import model_of, settings_of

if TYPE_CHECKING:
    from zdiloco.config import RunConfig
    from zdiloco.doctor.examine import Patient
    from zdiloco.node.params import NetParams

ROLES = ("learner", "sync", "relay")
ANSWER_S, LISTENS_S = 5.0, 600.0
UNSHAPED_GBIT = 1e6
"""Of the link of a plan that is only asked what is needed, not what is had."""


@click.command()
@click.argument("run_toml", metavar="[RUN.toml]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@overrides
@click.option("--role", type=click.Choice(ROLES), help="What is to run here.  [default: learner; with --listen: sync]")
@click.option("--listen", is_flag=True, help="Be the other side: answer doctors at the ports that the role binds.")
@click.option("--timeout", type=click.FloatRange(0.1, 86_400), metavar="SECONDS",
              help="Wait so long for an answer [5]; with --listen, for doctors [600].")  # fmt: skip
@click.option("--rtt-ms", type=click.FloatRange(0.001, 60_000), help="The round trip, where nobody is there to ask.")
@click.option("--processes", type=click.IntRange(1, 4096), default=1, show_default=True,
              help="So many processes like this one run here.")  # fmt: skip
@click.option("--parameters", type=float, help="Parameters of the model, such as 12e9.  [default: that of [task]]")
@click.option("--model", type=click.Path(path_type=Path), metavar="CONFIG.json", help="Its config.json instead.")
@click.option("--learners", type=click.IntRange(1, 100_000), help="Learners of the run; of its region, for a relay.")
@click.option("--step-time", type=click.FloatRange(1e-6, 1e6), default=1.0, show_default=True,
              help="Seconds of an inner step.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@log_level
def doctor(run_toml: Path | None, listen: bool, as_json: bool, **options: Any) -> int:
    """Look for what would go wrong: ports, link, clocks, TCP, limits, memory, disk, codec, versions; each with its fix.

    Run `zdiloco doctor RUN.toml --listen` where the syncer will be, then `zdiloco doctor RUN.toml` where a learner will
    be. At most 70 MB are sent, in some seconds. Exit code 1: something will fail. Every check: docs/doctor.md.
    """
    from zdiloco.config import from_tree, load

    for name in ("timeout", "rtt_ms", "step_time"):
        if options[name] is not None and not math.isfinite(options[name]):
            raise click.BadParameter(f"{options[name]} is not a number.", param_hint=f"'--{name.replace('_', '-')}'")
    config = load(run_toml, options["overrides"]) if run_toml else from_tree({}, options["overrides"])
    role = options["role"] or ("sync" if listen else "learner")
    if listen:
        return _listen(config, role, options["timeout"] or LISTENS_S, as_json)
    from zdiloco.cli.doctor_text import doctor_text
    from zdiloco.doctor.examine import examine, failing

    findings = examine(_patient(config, role, str(run_toml or "RUN.toml"), options))
    failed = failing(findings)
    answer = {"role": role, "fails": failed, "findings": [asdict(finding) for finding in findings]}
    click.echo(json.dumps(answer, indent=2) if as_json else doctor_text(findings))
    return int(failed)


def _binds(config: "RunConfig", role: str) -> "NetParams":
    return config.relay.region(config.net) if role == "relay" else config.net


def _listen(config: "RunConfig", role: str, seconds: float, as_json: bool) -> int:
    from zdiloco.cli.signals import Leaving
    from zdiloco.doctor.far import FarSide

    if role == "learner":
        raise click.UsageError("A learner binds no port: --listen goes with --role sync or relay.")
    net = _binds(config, role)
    far = FarSide(net)
    leaving = Leaving(lambda name: far.stop())
    where = f"{net.listen}:{net.port}"
    click.echo(f"listens at {where} and the three ports behind it, for {seconds:g} s; dial it by net.connect", err=True)
    far.serve(seconds)
    if as_json:
        click.echo(json.dumps({"role": role, "listened": where, "visitors": far.visitors}))
    return leaving.exit_code(0)


def _patient(config: "RunConfig", role: str, file: str, options: dict[str, Any]) -> "Patient":
    from zdiloco.doctor.dial import Dialled
    from zdiloco.doctor.examine import Patient
    from zdiloco.doctor.needs import Role, need_of
    from zdiloco.plan.answer import Asked
    from zdiloco.plan.params import Fleet, Region

    rtt_s = None if options["rtt_ms"] is None else options["rtt_ms"] / 1e3
    learners = options["learners"] or max(2, config.sync.min_quorum)
    usual = Region(name="here", learners=learners, step_s=options["step_time"], gbit_s=UNSHAPED_GBIT)
    region = replace(usual, rtt_s=usual.rtt_s if rtt_s is None else rtt_s, relay=role == "relay")
    asked = Asked(fleet=Fleet(regions=(region,)), model=model_of(options, config), settings=settings_of(config))
    timeout_s = options["timeout"] or ANSWER_S
    dials = Dialled(host=config.net.connect, port=config.net.port, timeout_s=timeout_s, net=config.net)
    return Patient(
        need=need_of(Role(role), asked, on_cpu=config.task.device == "cpu"),
        run_dir=config.run.path,
        dials=None if role == "sync" else dials,
        binds=None if role == "learner" else _binds(config, role),
        bind_key="relay.port" if role == "relay" else "net.port",
        file=file,
        rtt_s=rtt_s,
        processes=options["processes"],
    )
