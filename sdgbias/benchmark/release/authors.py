"""The authors' benchmark SDGBiasBench, a dataset of the hub under CC BY-SA 4.0: how it is fetched,
its file names and record fields (DATA.md section 5).

`data/<task>_T<k>.jsonl` (7 files) holds one JSON object a line; `views/` holds the 14 input files
for a model runner: `<task>_T<k>` (Full; IMG+Q at T5) and `<task>_T<k>_text` (CTX+Q; Q-only at T5).
Our additional columns are included in the data files under their names (FIELD_OF renames the five
that would collide).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdgbias.benchmark.item_columns import MCQ_COLUMNS, REGRESSION_COLUMNS
from sdgbias.errors import UsageError, argument
from sdgbias.files import json_object, write_json
from sdgbias.registry.entries import HUB_ID
from sdgbias.registry.fetch import asking_hub, download
from sdgbias.registry.hub import seconds
from sdgbias.types import TESTS, Task

MANIFEST = "release.json"
#: The dataset on the hub, and the file that keeps which commit of it was fetched.
AUTHORS_REPO, FETCHED = "jeffreylin1222/SDGBiasBench", "fetched.json"
#: What to do about a file that can't be written.
ONWARD = "free the disk or name another --out"
BLANK = "images/blank.png"
#: Name of each of the 7 data files -> its task and test.
PARTS = {f"{task}_{test}": (task, test) for task in Task for test in TESTS[task]}
#: Fields of a record in the order we write them; ours follow.
AUTHORS_FIELDS = (
    *("id", "item_id", "image", "question", "A", "B", "C", "answer", "split"),
    *("level", "pillar", "indicator", "task", "task_name", "target", "num_options"),
)
#: Our columns whose name has another meaning in a record, or that the authors name differently.
FIELD_OF = {
    **{"question": "item_question", "level": "value_level", "indicator_title": "task_name"},
    **{"option_a": "A", "option_b": "B", "option_c": "C"},
}
_COLUMNS = {FIELD_OF.get(name, name) for name in (*MCQ_COLUMNS, *REGRESSION_COLUMNS)}
#: Every field that is read: theirs, our columns that they have no name for, two of the images.
FIELDS = (
    *AUTHORS_FIELDS,
    *sorted(_COLUMNS - {*AUTHORS_FIELDS, "image_id"}),
    *("photo_id", "images"),
)


def refuse_foreign(out: Path, same_source: bool) -> None:
    """Raise UsageError when ``out`` isn't empty and isn't from an earlier run (``same_source``)."""
    if not same_source and out.is_dir() and (taken := next(os.scandir(out), None)):
        raise UsageError(
            f"{out}: not empty ({taken.name}) and not made by this command from the same source;"
            " name an empty folder with --out"
        )


def fetch(
    out: Path, repo: str = AUTHORS_REPO, revision: str = "", tell: Callable[[str], None] = print
) -> str:
    """Bring a dataset of the hub into ``out`` by its client's `snapshot_download`, which goes on
    where it was stopped; returns the commit. ``revision``: a branch, tag or commit; default: the
    commit of an earlier fetch into ``out``, else the newest one. The commit is stored in
    ``out``/fetched.json, so that running it again changes no version. ``tell`` gets the size first.

    Raises UsageError (no id of the hub; ``out`` holds another dataset), RegistryError (not on the
    hub), Gated, ExpiredToken, HubUnreachable, DiskFull, StoreError.
    """
    if not HUB_ID.fullmatch(repo):
        raise UsageError(f"--repo {repo!r}; valid: OWNER/NAME of a dataset on the hub")
    earlier = json_object(out / FETCHED)
    by_client = (out / ".cache" / "huggingface").is_dir()  # where the hub's client keeps its notes
    refuse_foreign(out, same_source=earlier.get("repo") == repo or by_client)
    wanted = revision or str(earlier.get("commit", "")) or "main"
    with asking_hub(repo, wanted, out, ONWARD, f"sdgbias release fetch --out {argument(out)}"):
        from huggingface_hub import HfApi

        dataset = HfApi().dataset_info(repo, revision=wanted, timeout=seconds())
        commit = str(dataset.sha)
        licence = str(getattr(dataset.card_data, "license", "") or "")
        about = {"repo": repo, "commit": commit, "licence": licence}
        tell(f"{repo}: commit {commit}, licence {licence or 'not stated'}")
        write_json(out / FETCHED, {**about, "complete": False}, ONWARD)
        where: dict[str, Any] = {"repo_id": repo, "repo_type": "dataset", "revision": commit}
        where |= {"local_dir": str(out), "etag_timeout": seconds()}
        lacking = download(where, out, ONWARD, repo, tell)
        write_json(out / FETCHED, {**about, "complete": True}, ONWARD)
    tell(f"{out}: {'fetched' if lacking else 'everything was there'}")
    return commit
