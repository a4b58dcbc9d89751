"""What a recipe describes, built and run: its original model, its defences, and their audit.

Trained networks are kept in a folder under a hash of everything that decides them. An audit, or
a second command, trains none of them again.
"""

from __future__ import annotations

import copy
import dataclasses
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from immunis.audits.audit import Audit, audit
from immunis.audits.lineup import Variant
from immunis.core.distributed import rank
from immunis.core.errors import InputError, RankWarning
from immunis.core.extras import need
from immunis.core.files import key_of, make_folder, write_bytes
from immunis.core.hashing import state_digest
from immunis.core.jobs import HERE, Progress, Run, silent
from immunis.core.records import Record, __version__
from immunis.core.settings import build, require
from immunis.core.shapes import ORIGINAL
from immunis.core.state import quiet
from immunis.data.task import Tasks
from immunis.methods import get_method
from immunis.methods.immunize import Immunized, immunize, training_for
from immunis.methods.record import feature_gram
from immunis.models.linear import fit_logistic_head
from immunis.models.text import TextEncoder
from immunis.models.weights import load_weights
from immunis.recipes.defences import Table, configured, settings_of, tables_of, tried
from immunis.recipes.recipe import Recipe
from immunis.report.export import weights
from immunis.theory.gram import check_pair
from immunis.theory.measure import Measurement, measure, measured
from immunis.training import checkpoint as checkpoints
from immunis.training.loop import fit
from immunis.training.objective import supervised_only
from immunis.training.settings import Hardware, device_of, training_of
from immunis.training.setup import divided

PLAIN = "plain"  # label of the training of a recipe that leaves out what defends


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A recipe with its data, and where its networks are trained and kept.

    Attributes:
        recipe: what to build and run.
        tasks: its data, as ``recipe.tasks`` loads it.
        hardware: what networks are trained on.
        folder: keeps trained networks, checkpoints and curves; None keeps nothing.
        progress: called with what is done, and the share of it.
    """

    recipe: Recipe
    tasks: Tasks
    hardware: Hardware = dataclasses.field(default_factory=Hardware)
    folder: str | Path | None = None
    progress: Progress = silent

    def original(self, turn: int = 0) -> nn.Module | Tensor:
        """Return the model that the recipe defends; pre-train it, or load it if it was kept.

        ``turn`` counts pre-trainings; each has another seed and other first weights. The head of an
        encoder that is not pre-trained here is fitted first, to its features.
        """
        recipe = dataclasses.replace(self.recipe, seed=self.recipe.seed + turn)
        primary = self.tasks.primary
        model = recipe.extractor(primary)
        if recipe.pretrain is None:
            return self._with_head(model) if isinstance(model, TextEncoder) else model
        assert isinstance(model, nn.Module)
        made_of = recipe.model, recipe.pretrain, primary.train.identity(), recipe.seed
        key = key_of(__version__, *made_of, self.hardware.precision)[:16]
        path = self._kept(f"original-{key}.safetensors")
        place = None if path is None else path.with_name(f"pretraining-{key}")
        if _load_kept(model, path):
            return model
        result = fit(
            recipe.cut(model, primary),
            supervised_only(),
            primary,
            None,
            training_of(recipe.pretrain),
            self.hardware,
            seed=recipe.seed,
            folder=place,
            resume=place is not None,
            progress=lambda _, share: self.progress("pre-training", share),
        )
        if path is not None and place is not None and rank() == 0:
            write_bytes(path, weights(result.model))
            (place / checkpoints.NAME).unlink(missing_ok=True)  # its curves stay
        return result.model

    def measure(self) -> Measurement:
        """Measure the tasks: the features of the recipe's network, or the inputs if it has none.

        It reads at most 16,384 samples of a network's features, or eight for each feature.
        """
        recipe, pair = self.recipe, (self.tasks.primary, self.tasks.harmful)
        if not recipe.is_network:
            require(
                recipe.data["source"] not in ("images", "text"),
                f"{recipe.name} reads images or text, which say little as they are: name a network "
                "in [model].",
            )
            self._check_used("inputs are measured as they are", "name a network in [model]")
            return measure(*pair, progress=self.progress)
        if recipe.pretrain is None:
            remedy = "add [pretrain] to the recipe"
            self._check_used("no network is trained first", remedy, self.hardware.device)
        began, device = time.perf_counter(), device_of(self.hardware.device)
        check_pair(*pair)
        whole = recipe.cut(self.original(), pair[0]).on(device)
        return measured((feature_gram(whole, pair[0]), feature_gram(whole, pair[1])), pair, began)

    def immunize(self, *, resume: bool = False, wandb: str | None = None) -> Immunized:
        """Defend the model by the recipe's own method."""
        recipe = self.recipe
        if not recipe.is_trained and recipe.pretrain is None:
            solved = f"method {recipe.method['name']!r} is solved in closed form"
            self._check_used(solved, "add [training] to the recipe")
        self.rehearse([recipe.method])
        if resume and (why := self._nothing_kept()):
            warnings.warn(f"nothing to resume: {why}. It runs from the start.", stacklevel=2)
        kept = {"folder": self.folder, "resume": resume, "wandb": wandb}
        return self.defended(recipe.method, self.original(), **kept)

    def audit(
        self,
        attacks: str | Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        run: Run | Mapping[str, Any] = HERE,
        *,
        final: bool = False,
    ) -> Audit:
        """Defend the model by each of the recipe's methods, and audit them all.

        ``attacks``, and ``methods`` (labels of defences), replace what the recipe says. A defence
        that is labelled ``plain`` is the same training without what defends. ``final`` scores the
        final half of the harmful test rows.
        """
        recipe, tasks, run = self.recipe, self.tasks, build(Run, run, "run")
        device_of(run.device)  # before hours of training
        if recipe.audit.get("trials") is not None:
            need("optuna")
        tables = tables_of(recipe, methods)
        self.rehearse(tables.values())
        originals = [self.original(turn) for turn in range(recipe.originals)]
        models, training = dict[str, Any]({ORIGINAL: originals}), dict[str, list[Any]]()
        with quiet(RankWarning):  # the record reports ranks
            for label, table in tables.items():
                models[label], told = self.variants(table, originals)
                if told:
                    training[label] = told
        result = audit(
            models,
            tasks.primary,
            tasks.attacker,
            tasks.transfer,
            recipe.attacks if attacks is None else attacks,
            defender=tasks.harmful,
            plain=PLAIN if PLAIN in models else None,
            tolerance=recipe.tolerance,
            threshold=recipe.audit.get("threshold"),
            final=final,
            head=recipe.head,
            effort=recipe.effort,
            run=run,
            progress=run.progress,
        )
        figures = {**result.record.figures, **({"training": training} if training else {})}
        for label, table in tables.items():
            figures["models"][label]["tried"] = tried(table, training.get(label, ()))
        record = dataclasses.replace(result.record, seed=recipe.seed, figures=figures)
        chosen = attacks if attacks is None or isinstance(attacks, str) else ",".join(attacks)
        named = None if methods is None else ",".join(methods) or "none"
        given = {"--attacks": chosen, "--methods": named}
        asked = [word for pair in given.items() if pair[1] is not None for word in pair]
        asked += ["--final"] * final + self.arguments()
        return Audit(record.with_settings(recipe=recipe.to_dict(), arguments=asked))

    def arguments(self) -> list[str]:
        """Return what a command must be told besides the recipe to give the same result."""
        told = ["--allow-outside"] if self.recipe.allow_outside else []
        usual = self.hardware.precision == Hardware().precision
        return told + ([] if usual else ["--precision", self.hardware.precision])

    def rehearse(self, tables: Iterable[Table]) -> None:
        """Check that defences fit the network and the data, before hours of pre-training."""
        recipe, tasks = self.recipe, self.tasks
        if recipe.pretrain is None:
            return
        whole = recipe.cut(recipe.extractor(tasks.primary), tasks.primary)
        for table in tables:
            training, method = recipe.training_for(table), get_method(table["name"])
            if training is None:
                _ = whole.last_layer  # a network without one is refused
                continue
            assert method.objective is not None
            how = training_for(method, training, whole.model, tasks.primary)
            whole.parameters_named(how.layers)
            method.objective(configured(table, network=True), whole)
            divided(tasks.primary, "primary", how)
            divided(tasks.harmful, "harmful", how)

    def defended(self, table: Table, model: nn.Module | Tensor, **options: Any) -> Immunized:
        """Defend a model by one of the methods; ``options`` are those of ``immunize``."""
        recipe = self.recipe
        training = recipe.training_for(table)
        head = None if training is None else recipe.head
        given = {"seed": recipe.seed, "head": head, "training": training, **settings_of(table)}
        given |= {"hardware": self.hardware, "progress": self.progress, **options}
        return immunize(model, self.tasks.primary, self.tasks.harmful, table["name"], **given)

    def variants(
        self, table: Table, originals: Sequence[nn.Module | Tensor]
    ) -> tuple[list[Variant], list[Any]]:
        """Return a defence as an audit takes it: networks of other seeds, originals in turns.

        A defence in closed form has one variant for each original. A weight that is searched is
        searched by the first network's training; the others take it. The second value tells how
        each network was trained; None if its record was lost.
        """
        recipe, pair = self.recipe, (self.tasks.primary, self.tasks.harmful)
        training = recipe.training_for(table)
        if training is None:
            solved = (self.defended(table, model) for model in originals)
            return [Variant(model, place) for place, model in enumerate(solved)], []
        given = (*(task.train.identity() for task in pair), training)
        table = {key: value for key, value in table.items() if key != "tried"}
        searched = get_method(table["name"]).searched
        found, told = list[Variant](), list[Any]()
        for turn in range(recipe.variants):
            seed, place = recipe.seed + turn, turn % len(originals)
            model = originals[place]
            assert isinstance(model, nn.Module)
            after = state_digest(model), self.hardware.precision
            key = key_of(__version__, *given, table, seed, *after)[:16]
            path = self._kept(f"{table['name']}-{seed}-{key}.safetensors")
            fresh, record = copy.deepcopy(model), None
            if path is not None and _load_kept(fresh, path):
                with suppress(InputError):
                    record = Record.load(path.with_suffix(".json"))
            else:
                result = self.defended(table, model, seed=seed)
                fresh, record = result.model, result.record
                if path is not None:
                    record.save(path.with_suffix(".json"))  # first: a network on disk is complete
                    write_bytes(path, weights(fresh, record))
            found.append(Variant(fresh.cpu().eval(), place))
            told.append(None if record is None else _told(record))
            if searched and record is not None:
                table = {**table, searched: record.settings[searched]}
        return found, told

    def _with_head(self, model: TextEncoder) -> TextEncoder:
        """Return an encoder with a head for the primary task, fitted or loaded if it was kept."""
        recipe, primary = self.recipe, self.tasks.primary
        if "checkpoint" in recipe.model:
            return model
        made_of = recipe.model, primary.train.identity(), recipe.seed, state_digest(model.body)
        path = self._kept(f"original-{key_of(__version__, *made_of)[:16]}.safetensors")
        if not _load_kept(model, path):
            whole = recipe.cut(model, primary).on(device_of(self.hardware.device))
            fit_logistic_head(whole, primary)
            model.load_state_dict(whole.model.state_dict())
            if path is not None and rank() == 0:
                write_bytes(path, weights(model))
        return model

    def _kept(self, name: str) -> Path | None:
        return None if self.folder is None else make_folder(self.folder) / name

    def _nothing_kept(self) -> str:
        """Return why there is no training to continue; nothing if there is one."""
        if not self.recipe.is_trained:
            return f"method {self.recipe.method['name']!r} is solved in closed form"
        found = self.folder and any(Path(self.folder).rglob(checkpoints.NAME))
        return "" if found else f"{self.folder} holds no checkpoint"

    def _check_used(self, why: str, remedy: str, device: Any = "auto") -> None:
        """Raise ``SettingsError`` if more hardware than a ``device`` is asked for without use."""
        options = "--device, --devices, --nodes, --strategy, --precision and --compile"
        require(
            self.hardware in (Hardware(), Hardware(device="cpu"), Hardware(device=device)),
            f"{options} are for networks, and here {why}. Leave them out, or {remedy}.",
        )


def _load_kept(model: nn.Module, path: Path | None) -> bool:
    """Load a network that was kept; return False if there is none, or a damaged one (warned)."""
    if path is None or not path.exists():
        return False
    try:
        load_weights(model, path)
    except InputError as error:
        warnings.warn(f"{error} The network is trained again.", stacklevel=3)
        return False
    return True


def _told(record: Record) -> dict[str, Any]:
    """Return what an audit's record says of how a network was trained."""
    rows = record.settings["training"]["harmful_batch"]
    return {**record.figures["details"], "harmful_batch": rows}
