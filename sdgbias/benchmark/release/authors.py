"""The authors' benchmark from the hub, as they publish it: SDGBiasBench, a dataset under CC BY-SA
4.0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sdgbias.benchmark.release.records import (
    AUTHORS_REPO,
    FETCHED,
    ONWARD,
    refuse_foreign,
)
from sdgbias.errors import UsageError
from sdgbias.files import json_object, write_json
from sdgbias.registry.entries import HUB_ID
from sdgbias.registry.fetch import asking_hub, download
from sdgbias.registry.hub import seconds


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
    refuse_foreign(out, same_source=earlier.get("repo") == repo or _looks_downloaded(out))
    wanted = revision or str(earlier.get("commit", "")) or "main"
    again = f"sdgbias release fetch --out {out}"
    with asking_hub(repo, wanted, out, ONWARD, again):
        from huggingface_hub import HfApi

        dataset = HfApi().dataset_info(repo, revision=wanted, timeout=seconds())
        commit = str(dataset.sha)
        licence = str(getattr(dataset.card_data, "license", "") or "")
        about = {"repo": repo, "commit": commit, "licence": licence}
        tell(f"{repo}: commit {commit}, licence {licence or 'not stated'}")
        write_json(out / FETCHED, {**about, "complete": False}, ONWARD)
        where: dict[str, object] = {"repo_id": repo, "repo_type": "dataset", "revision": commit}
        where |= {"local_dir": str(out), "etag_timeout": seconds()}
        lacking = download(where, out, ONWARD, repo, tell)
        write_json(out / FETCHED, {**about, "complete": True}, ONWARD)
    tell(f"{out}: {'fetched' if lacking else 'everything was there'}")
    return commit


def _looks_downloaded(out: Path) -> bool:
    """Whether a folder was downloaded by the hub's own client, which keeps its notes there."""
    return (out / ".cache" / "huggingface").is_dir()
