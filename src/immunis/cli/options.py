"""The app that commands join, and the options that they share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from immunis.cli import names
from immunis.cli.console import held, manner, out, say
from immunis.core.records import __version__


class Commands(TyperGroup):
    """Lets --quiet and --verbose stand before or after the command; says what an interrupt did."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move them to the front; what follows ``--`` stays."""
        end = args.index("--") if "--" in args else len(args)
        moved = [a for a in args[:end] if a in ("-q", "--quiet", "-v", "--verbose")]
        rest = [a for a in args[:end] if a not in moved] + args[end:]
        return super().parse_args(ctx, [*moved, *rest])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Join the lines of each paragraph of a command's help; typer keeps the source's."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            paragraphs = command.help.split("\n\n")
            command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        return command

    def invoke(self, ctx: Any) -> Any:
        """Say that an interrupt ended the command; typer ends it in silence."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("interrupted.")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Make open-weight models hard to turn to harm, and measure how hard. "
    "Start with: [bold]immunis demo[/bold].",
)


def _recipes(incomplete: str) -> list[str]:
    return [name for name in names.recipes() if name.startswith(incomplete)]


def _attacks(incomplete: str) -> list[str]:
    """Names that may follow the last comma."""
    before, comma, last = incomplete.rpartition(",")
    known = names.attacks() if comma else [*names.PRESETS, *names.attacks()]
    return [f"{before}{comma}{name}" for name in known if name.startswith(last)]


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
Outside = Annotated[
    bool, typer.Option("--allow-outside", help="Let the recipe name files outside its own folder.")
]
AllowBroken = Annotated[
    bool, typer.Option("--allow-broken", help="Accept a model that lost its primary task.")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder for the results; default: a folder of its own below immunis-runs.",
    ),
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
    bool, typer.Option("--dry-run", help="Only estimate time and memory, from a short trial run.")
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION",
        help="Exit with code 1 if this holds, as 'primary<-0.5' (points). May be given again.",
    ),
]
Device = Annotated[
    str, typer.Option(help="Where models run: cpu, cuda, auto, or mps (not for training).")
]
Precision = Annotated[str, typer.Option(help="Precision of training: 32-true, bf16-mixed, ...")]


def conditions(texts: list[str] | None, kind: str, models: Iterable[str] | None = None) -> Any:
    """Return what ``--fail-if`` asks; refuse unknown figures and models before anything runs."""
    from immunis.report.fail_if import condition

    known = None if models is None else list(models)
    return [part for text in texts or () for part in condition(text, kind, known)]


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"immunis {__version__}", highlight=False)
        raise typer.Exit


FIRST = """immunis {version}: make open-weight models hard to turn to harm, and measure how hard.

  immunis demo              defend and attack a small network, in a minute: start here
  immunis list recipes      what can be run as it is
  immunis measure RECIPE    how far conditioning could go on a pair of tasks
  immunis immunize RECIPE   defend a model; weights, model card and card come out
  immunis audit RECIPE      what every attacker pays, controls beside it
  immunis card RECORD       one page to publish
  immunis view FOLDER       all runs and cards on a local page

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
