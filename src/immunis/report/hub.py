"""Upload a released folder to the Hugging Face hub, or say what would be uploaded."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from immunis.core.errors import InputError, OutputError, SettingsError
from immunis.core.extras import need
from immunis.core.files import check_file, read_json, read_text
from immunis.core.locks import publish
from immunis.core.records import Record
from immunis.core.releases import SUMS, released
from immunis.models.text import MODULES
from immunis.report.loading_code import TITLE, from_hub, section
from immunis.report.text import lost_primary

README = "README.md"
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
_AUDITED = re.compile(r"`immunis[ .]audit[` ]")  # as the model card of an audit says
_LICENSE = re.compile(r"^license:\s*\S", re.M)


class Upload(NamedTuple):
    """What is uploaded: the files by name with their sizes, and the README as it will be."""

    folder: Path
    repository: str
    sizes: dict[str, int]
    readme: str
    notes: list[str]


def planned(folder: str | Path, repository: str, allow_broken: bool = False) -> Upload:
    """Return what ``push`` uploads: the files of the release alone, each as it was written.

    Checkpoints, curves and other files in the folder stay. The README may have been edited; its
    code to load the model is made to download the repository. Nothing is written or fetched.

    Raises:
        InputError: for a folder that holds no released model, files that were changed since,
            links, or a model that lost its primary task (unless ``allow_broken``).
        SettingsError: for a repository that is not called USER/NAME.
    """
    place = Path(folder)
    parts = repository.split("/")
    if len(parts) != 2 or not all(map(_PART.fullmatch, parts)) or re.search(r"--|\.\.", repository):
        raise SettingsError(
            f"repository {repository!r}: expected USER/NAME of letters, digits, '-', '_' and '.'."
        )
    sums = released(place)
    if README not in sums or "record.json" not in sums:
        raise InputError(
            f"{place} is no released model: it lacks SHA256SUMS with README.md and record.json. "
            "Give the folder that immunis immunize (or export) wrote."
        )
    for name, value in sums.items():
        if (place / name).resolve() != place.resolve() / name:
            raise InputError(f"{place / name} is a link; a release holds files alone. Copy it.")
        if name != README:
            check_file(place / name, value)
    record = Record.load(place / "record.json")
    if not allow_broken and (lost := lost_primary(record)):
        raise InputError(f"{lost} Give --allow-broken to upload it anyway.")
    _check_weights(place, sums, record.digest())
    try:
        readme = read_text(place / README)
    except (OSError, ValueError) as error:
        raise InputError(f"{place / README} cannot be read: {error}.") from error
    if TITLE not in readme:
        told = section(read_json(place / "config.json", dict), MODULES in sums)
        readme = f"{readme.rstrip()}\n\n{told}"
    readme = from_hub(readme, repository)
    sizes = {name: (place / name).stat().st_size for name in [*sums, SUMS]}
    sizes[README] = len(readme.encode())
    notes = []
    if not _LICENSE.search(readme.split("\n---", 1)[0]):
        notes.append("README.md sets no license; add a line 'license: ...' at its top")
    if record.kind == "immunize" and not _AUDITED.search(readme):
        audit = f"immunis card {place}/record.json AUDIT/record.json -o {place}/README.md"
        notes.append(f"README.md holds no audit; to add one: {audit}")
    return Upload(place, repository, dict(sorted(sizes.items())), readme, notes)


def push(upload: Upload, private: bool = False) -> str:
    """Upload with the user's own token, and return the address of the repository.

    The README in the folder is replaced by the one that is uploaded.

    Raises:
        SettingsError: if huggingface_hub is not installed.
        OutputError: if the hub refuses, or cannot be reached.
    """
    library = need("huggingface_hub")
    publish(upload.folder / README, upload.readme)
    api = library.HfApi()
    try:
        made = api.create_repo(upload.repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=upload.repository,
            folder_path=upload.folder,
            allow_patterns=[glob.escape(name) for name in upload.sizes],
            commit_message="Upload an immunized model",
        )
    except Exception as error:  # a network, and a server, fail in any way
        told = " ".join(str(error).split())[:300]
        raise OutputError(
            f"{upload.repository} was not uploaded: {told}. Log in with hf auth login, or set "
            "HF_TOKEN, to a token that may write there."
        ) from error
    return str(made)


def _check_weights(place: Path, names: Any, record: str) -> None:
    """Refuse weights that another run made than the record beside them, by its digest."""
    for name in names:
        if not name.endswith(".safetensors"):
            continue
        try:
            with safe_open(place / name, "pt") as file:
                made = (file.metadata() or {}).get("record", record)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{place / name} is no safetensors file: {error}.") from error
        if made != record:
            raise InputError(
                f"{place / name} belongs to another run than record.json (by their digests). "
                "Write the folder again."
            )
