"""`zdiloco checkpoint`: what the checkpoints of a run hold, whether they are whole, and one as a file for others."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zdiloco.cli.columns import Row, table
from zdiloco.cli.options import log_level

if TYPE_CHECKING:
    from zdiloco.rundir.export import Exported
    from zdiloco.rundir.survey import Seen
    from zdiloco.tensor.layout import Layout

FOLDER = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
run_folder = click.argument("run_dir", metavar="RUN_DIR", type=FOLDER)


@click.group()
def checkpoint() -> None:
    """Show, verify or export the checkpoints of a run, whether a syncer is at work there or not."""


@checkpoint.command()
@run_folder
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@log_level
def show(run_dir: Path, as_json: bool) -> int:
    """List all cuts in RUN_DIR, and the layout of the newest that can be read: its fragments and tensors.

    Exit code 2: there is none.
    """
    from zdiloco.errors import ConfigError
    from zdiloco.rundir.survey import survey

    cuts = survey(run_dir)
    if not cuts:
        raise ConfigError(f"{run_dir} holds no checkpoint")
    layout = next((seen.layout for seen in cuts if seen.layout is not None), None)
    if as_json:
        click.echo(json.dumps({"cuts": [_cut_obj(seen) for seen in cuts], "layout": _layout_obj(layout)}, indent=2))
    else:
        click.echo("\n".join(line.rstrip() for line in _shown(cuts, layout)))
    return 0


@checkpoint.command()
@run_folder
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else.")
@log_level
def verify(run_dir: Path, as_json: bool) -> int:
    """Read every file that a manifest in RUN_DIR names: digests, layouts, shapes. One line for each fault.

    Files that no manifest names are told, and are no faults: a save may be under way. Exit code 1: something is not
    whole.
    """
    from zdiloco.errors import ConfigError
    from zdiloco.rundir.survey import faults_of, leftovers, survey

    cuts = survey(run_dir)
    if not cuts:
        raise ConfigError(f"{run_dir} holds no checkpoint")
    faults = {seen.number: faults_of(seen.path) for seen in cuts}
    left = leftovers(run_dir)
    found = list(dict.fromkeys(fault for each in faults.values() for fault in each))
    if as_json:
        whole = [number for number, each in faults.items() if not each]
        click.echo(json.dumps({"whole": whole, "faults": found, "leftovers": left}, indent=2))
    else:
        for seen in cuts:
            click.echo(f"cut {seen.number}: {'NOT WHOLE' if faults[seen.number] else 'whole'}")
        for fault in found:
            click.echo(fault)
        for name in left:
            click.echo(f"no manifest names {name}")
    return int(bool(found))


@checkpoint.command()
@run_folder
@click.argument("out", metavar="OUT.safetensors", type=click.Path(path_type=Path))
@click.option("--cut", "number", type=click.IntRange(min=1), help="The cut to export.  [default: the newest whole one]")
@click.option(
    "--dtype",
    type=click.Choice(["own", "fp32", "bf16"]),
    default="own",
    show_default=True,
    help="Of parameters; own: as in the model. Buffers keep theirs.",
)
@click.option("--base", type=FILE, metavar="FILE", help="A safetensors file of the whole model, for what stays.")
@click.option("--force", is_flag=True, help="Overwrite OUT.safetensors.")
@log_level
def export(run_dir: Path, out: Path, number: int | None, dtype: str, base: Path | None, force: bool) -> None:
    """Write a cut of RUN_DIR as one safetensors file with the model's own names and shapes.

    model.load_state_dict(safetensors.torch.load_file(OUT)) loads it. Frozen parameters and whole-number buffers never
    travel; they come from --base, or are left out.
    """
    from zdiloco.rundir.export import Wanted, export

    done = export(run_dir, out, Wanted(number=number, dtype=dtype, base=base, force=force))
    for line in _told(done):
        click.echo(line)


def _told(done: "Exported") -> list[str]:
    lines = [f"cut {done.number}: {done.tensors:,} tensors, {done.nbytes / 1e6:,.1f} MB in {done.path}"]
    lines += [f"tied, under each name: {' = '.join(tie)}" for tie in done.ties]
    if done.local:
        lines.append(f"each learner counts its own, left out: {', '.join(done.local)}")
    if done.from_base:
        lines.append(f"from the base: {', '.join(done.from_base)}")
    else:
        lines.append("frozen parameters, if there are any, are not in a checkpoint: --base adds them")
    return lines


def _shown(cuts: "list[Seen]", layout: "Layout | None") -> list[str]:
    rows: list[Row] = [("cut", "written", "epoch", "versions", "merged tokens", "MB", "whole")]
    for seen in cuts:
        versions = [entry.stamp[2] for entry in seen.manifest.fragments] if seen.manifest else []
        rows.append(
            (
                str(seen.number),
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seen.written_at)),
                str(seen.manifest.epoch.counter) if seen.manifest else "-",
                f"{min(versions)} to {max(versions)}" if versions else "-",
                "-" if seen.merged_tokens is None else f"{seen.merged_tokens:,.0f}",
                f"{seen.nbytes / 1e6:,.1f}",
                f"NO: {seen.why}" if seen.why else "by its sizes",
            )
        )
    run_id = next((seen.manifest.run_id for seen in cuts if seen.manifest), "-")
    return [f"run {run_id}", "", *table(rows), *(_layout_lines(layout) if layout else [])]


def _layout_lines(layout: "Layout") -> list[str]:
    rows: list[Row] = [("fragment", "tensor", "dtype", "shape", "kind", "also called")]
    ties = {tie[0]: ", ".join(tie[1:]) for tie in layout.ties}
    for fragment in layout.fragments:
        for spec in fragment.tensors:
            shape = "x".join(map(str, spec.shape)) or "one number"
            rows.append((str(fragment.index), spec.name, spec.dtype, shape, str(spec.kind), ties.get(spec.name, "")))
    numels = sum(layout.numels)
    head = f"layout {layout.digest}: {numels:,} values, {len(rows) - 1:,} tensors in {len(layout.fragments)} fragments"
    return ["", head, "", *table(rows)]


def _cut_obj(seen: "Seen") -> dict[str, Any]:
    manifest = seen.manifest
    return {
        "cut": seen.number,
        "manifest": seen.path.name,
        "written_at": seen.written_at,
        "run_id": manifest.run_id if manifest else None,
        "epoch": manifest.epoch.counter if manifest else None,
        "versions": [entry.stamp[2] for entry in manifest.fragments] if manifest else [],
        "codecs": [entry.codec for entry in manifest.fragments] if manifest else [],
        "progress_tokens": manifest.progress_tokens if manifest else None,
        "merged_tokens": seen.merged_tokens,
        "bytes": seen.nbytes,
        "whole": not seen.why,
        "why": seen.why,
    }


def _layout_obj(layout: "Layout | None") -> dict[str, Any] | None:
    if layout is None:
        return None
    return {
        "digest": layout.digest,
        "shares": list(layout.shares),
        "fragments": [
            [
                {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape), "kind": str(spec.kind)}
                for spec in fragment.tensors
            ]
            for fragment in layout.fragments
        ],
        "ties": [list(tie) for tie in layout.ties],
    }
