"""What commands share: their options, what stands before them, what is said without one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from immunis.cli.console import held, manner, out
from immunis.core.version import __version__


class Anywhere(TyperGroup):
    """Lets --quiet and --verbose stand before or after the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move them to the front; what follows ``--`` stays."""
        end = args.index("--") if "--" in args else len(args)
        moved = [a for a in args[:end] if a in ("-q", "--quiet", "-v", "--verbose")]
        rest = [a for a in args[:end] if a not in moved] + args[end:]
        return super().parse_args(ctx, [*moved, *rest])


app = typer.Typer(
    cls=Anywhere,
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Make open-weight models hard to turn to harm, and measure how hard. "
    "Start with: [bold]immunis demo[/bold].",
)


def _recipes(incomplete: str) -> list[str]:
    from immunis.recipes import catalogue

    return [e["name"] for e in catalogue()["recipes"] if e["name"].startswith(incomplete)]


def _attacks(incomplete: str) -> list[str]:
    """Names that may follow the last comma."""
    from immunis.attacks import ATTACKS, PRESETS

    before, comma, last = incomplete.rpartition(",")
    names = ATTACKS if comma else [*PRESETS, *ATTACKS]
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A TOML file, or the name of a bundled recipe (see: immunis list recipes).",
        autocompletion=_recipes,
    ),
]
Records = Annotated[
    list[Path], typer.Argument(metavar="RECORD", help="record.json files of earlier commands.")
]
Attacks = Annotated[
    str | None,
    typer.Option(
        help="quick, standard, full, or names separated by commas; default: the recipe's.",
        autocompletion=_attacks,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(help="Folder with data files; default: $IMMUNIS_DATA, then ~/.cache/immunis."),
]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", help="Folder for the results; it is made if it is missing."),
]
Workers = Annotated[int, typer.Option(min=1, help="Processes to run on this machine.")]
Cluster = Annotated[
    str | None,
    typer.Option(help="Ray cluster, ray://HOST:PORT or local. Needs the extra: cluster."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only estimate time and memory, from a short pilot.")
]
Device = Annotated[
    str, typer.Option(help="Where models run: cpu, cuda, auto, or mps (not for training).")
]
Precision = Annotated[str, typer.Option(help="Precision of training: 32-true, bf16-mixed, ...")]


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"immunis {__version__}", highlight=False)
        raise typer.Exit


FIRST = """immunis {version}: make open-weight models hard to turn to harm, and measure how hard.

  immunis demo              every method on bundled digits, in seconds: start here
  immunis list recipes      what can be run as it is
  immunis measure RECIPE    how far conditioning could go on a pair of tasks
  immunis immunize RECIPE   defend a model; weights, model card and card come out
  immunis audit RECIPE      what every attacker pays, controls beside it
  immunis card RECORD       one page to publish

  immunis --help            all commands; immunis COMMAND --help: all options"""


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only where the result is, and errors.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print every stage; errors with their traceback."),
    ] = False,
) -> None:
    """Make open-weight models hard to turn to harm, and measure how hard."""
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other.")
    ctx.with_resource(held)
    manner.quiet, manner.verbose = quiet, verbose
    if ctx.invoked_subcommand is None:
        typer.echo(FIRST.format(version=__version__))
