"""The authors' dataset from the hub to a table: fetched by the hub's client from a loopback hub,
imported, evaluated, and named where results are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pandas as pd
import pytest
from typer.testing import CliRunner

from sdgbias.benchmark.prompts import IGNORE, view_cells
from sdgbias.benchmark.release.authors import AUTHORS_REPO, fetch
from sdgbias.benchmark.release.import_ import import_
from sdgbias.cli import app
from sdgbias.errors import HubUnreachable, InputError, RegistryError, UsageError
from sdgbias.raw.images.shards import ImageReader
from tests.builders.authors_release import write
from tests.builders.commands import metrics, ok
from tests.builders.hub import Commit, Hub, Repo, commit, folder

QUESTIONS, NUMBERS = 60, 30
QUICK = ("--passes", "none", "--draws", 50)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Commit:
    """The dataset as it lies on the hub."""
    path = tmp_path_factory.mktemp("dataset") / "files"
    write(path, QUESTIONS, NUMBERS)
    return commit(folder(path))


def hub_of(*commits: Commit) -> Hub:
    return Hub({AUTHORS_REPO: Repo(list(commits), licence="cc-by-sa-4.0")})


def test_from_the_hub_to_a_table_of_the_authors_questions(
    published: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_of(published) as hub:
        hub.into(monkeypatch, tmp_path / "home")
        fetched = CliRunner().invoke(app, ["release", "fetch", "--out", str(tmp_path / "files")])
    assert fetched.exit_code == 0, fetched.output
    lines = fetched.stdout.splitlines()
    assert lines[0] == f"{AUTHORS_REPO}: commit {published.sha}, licence cc-by-sa-4.0"
    assert lines[1].startswith(f"{AUTHORS_REPO}: ") and lines[1].endswith(" GiB to fetch")
    assert {p.name for p in (tmp_path / "files" / "data").iterdir()} >= {"mcq_T1.jsonl"}

    benchmark, results = tmp_path / "benchmark", tmp_path / "results.duckdb"
    said = ok("release", "import", tmp_path / "files", "--out", benchmark)
    assert f"{QUESTIONS} mcq, {NUMBERS} regression items" in said
    card = json.loads((benchmark / "benchmark.json").read_text("utf-8"))
    assert card["hub"] == {
        "repo": AUTHORS_REPO,
        "commit": published.sha,
        "licence": "cc-by-sa-4.0",
    }

    ok("evaluate planted-optimist", *QUICK, "--benchmark", benchmark, "--results", results)
    page = json.loads(ok("reproduce", "--table", "H", "--results", results, "--json"))
    [run] = page["runs"]
    assert run["authors_questions"] is True
    assert f"the authors' questions ({AUTHORS_REPO} at {published.sha[:12]})" in run["says"]


def test_the_commit_that_was_fetched_stays(
    published: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = commit({**published.files, "README.md": b"newer"})
    out = tmp_path / "files"
    with hub_of(published) as hub:
        hub.into(monkeypatch, tmp_path / "home")
        first = fetch(out, tell=lambda _: None)
        hub.repos[AUTHORS_REPO].commits.append(newer)
        hub.asked.clear()
        told: list[str] = []
        again = fetch(out, tell=told.append)
        assert (first, again) == (published.sha, published.sha)
        assert told[-1] == f"{out}: everything was there"
        assert not any("/resolve/" in path and ".jsonl" in path for path in hub.asked)
        assert fetch(out, revision="main", tell=lambda _: None) == newer.sha


def test_a_download_that_broke_off_goes_on(
    published: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, out = huggingface_hub.snapshot_download, tmp_path / "files"

    def cut(**where: Any) -> object:
        if where.get("dry_run"):
            return real(**where)
        real(**where, allow_patterns=["images/*"])
        raise KeyboardInterrupt

    with hub_of(published) as hub:
        hub.into(monkeypatch, tmp_path / "home", seconds=2)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(huggingface_hub, "snapshot_download", cut)
            fetch(out, tell=lambda _: None)
        with pytest.raises(InputError, match="interrupted; finish it: sdgbias release fetch"):
            import_(out, tmp_path / "benchmark")
        hub.asked.clear()
        fetch(out, tell=lambda _: None)
    assert not any("/resolve/" in path and "/images/0" in path for path in hub.asked)
    import_(out, tmp_path / "benchmark")


def test_what_can_go_wrong_is_one_line_with_the_next_command(
    published: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("kept")
    with hub_of(published) as hub:
        hub.into(monkeypatch, tmp_path / "home")
        with pytest.raises(UsageError, match="not empty"):
            fetch(tmp_path / "other", tell=lambda _: None)
        with pytest.raises(RegistryError, match="no revision 'v9' on the hub"):
            fetch(tmp_path / "files", revision="v9", tell=lambda _: None)
        hub.repos[AUTHORS_REPO].broken = 503
        with pytest.raises(HubUnreachable, match="sdgbias release fetch --out") as refused:
            fetch(tmp_path / "files", tell=lambda _: None)
    assert "register-model" not in str(refused.value)


def test_the_authors_blank_picture_is_an_option(tmp_path: Path) -> None:
    write(tmp_path / "files", 12, 5)
    import_(tmp_path / "files", tmp_path / "benchmark", "blank-image")

    cells = view_cells(pd.read_parquet(tmp_path / "benchmark" / "prompts.parquet"))

    blind = cells[cells["view"].isin(["ctx_q", "q_only"])]
    [blank] = set(blind["image_id"])
    picture = (tmp_path / "files" / "images" / "blank.png").read_bytes()
    assert ImageReader(tmp_path / "benchmark")[blank] == (picture,)
    assert blind["text"].str.endswith(IGNORE).all()
    seen = cells[cells["view"].isin(["full", "img_q"])]
    assert blank not in set(seen["image_id"]) and not seen["text"].str.endswith(IGNORE).any()
    card = json.loads((tmp_path / "benchmark" / "benchmark.json").read_text("utf-8"))
    assert card["text_view"] == "blank-image"


def test_a_target_by_any_of_its_names_and_one_without_a_tolerance(tmp_path: Path) -> None:
    given = ["under_5_mortality_rate", "Nutritional Wealth", "hidden_poverty", "sanitation_index"]
    meant = ["under5_mort", "women_bmi", "asset_index", "sanitation_index", "height"]
    write(tmp_path / "files", 12, 25)
    for path in (tmp_path / "files" / "data").glob("regression*"):
        records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for record in records:
            record["target"] = [*given, "height"][record["item_id"] % 5]
        path.write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")

    benchmark, results = tmp_path / "benchmark", tmp_path / "results.duckdb"
    said = ok("release", "import", tmp_path / "files", "--out", benchmark)

    assert "5 regression items on target height, for which Table F has no tolerance" in said
    items = pd.read_parquet(benchmark / "items_regression.parquet")
    assert list(items["target"]) == [meant[i % 5] for i in items["item_id"]]
    assert set(items.loc[items["tolerance"].isna(), "target"]) == {"height"}
    assert set(items.loc[items["tolerance"].notna(), "target"]) == set(meant[:4])
    ok("evaluate planted-optimist", *QUICK, "--benchmark", benchmark, "--results", results)
    rows = metrics(
        results, "task = 'regression' AND test = 'T2' AND method = 'full' AND pillar = 'all'"
    ).set_index("metric")["n"]
    assert rows["mae"] == 20 and rows["interval_accuracy"] == 15
