"""The pages of `sdgbias serve` as a browser asks for them, without a browser: what they say, what
they refuse, and that they only read."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import pandas as pd
import pytest
from starlette.testclient import TestClient

from sdgbias import store
from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.errors import UsageError
from sdgbias.report import leaderboard
from sdgbias.report.pages import models
from sdgbias.report.reader import Results
from sdgbias.report.web import app
from sdgbias.report.web.site import Site
from sdgbias.store import views
from tests.builders.night_stubs import entry
from tests.builders.nights import BROKEN, publish_persons
from tests.builders.nights import name as night_name
from tests.builders.web_pages import BEFORE, RUN, text

PAGES = (
    "/",
    "/nights",
    f"/nights/{night_name(3)}",
    "/numbers",
    "/numbers?task=regression&metric=mae",
    "/models",
    "/models/fake-optimist",
    f"/models/{BROKEN}",
    "/runs",
    "/questions",
    f"/questions/{RUN}/mcq/1",
    f"/questions/{RUN}/regression/1060?test=T2",
    "/compare",
    f"/compare?a={BEFORE}&b={RUN}",
    f"/compare?a={RUN}&b=fake-pessimist-1",
)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Another process holds the file, as DuckDB says it."""
    import subprocess
    import sys

    code = (
        f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('held', flush=True);"
        " sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.communicate(timeout=600)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_whole_and_safe(client: TestClient, page: str) -> None:
    answer = client.get(page)
    assert answer.status_code == 200, text(answer.text)
    html = answer.text
    assert html.count("<h1") == 1 and 'lang="en"' in html and "<title>" in html
    assert not re.search(r"<script(?! src=)|\sstyle=|\son\w+=|<style", html), (
        "the policy allows no inline script or style"
    )
    assert not re.search(r'(?:src|href|action)="(?:https?:)?//', html), (
        "a page refers to this server alone"
    )
    assert "<b>quarantined" not in html and "</script><b>" not in html, (
        "text of the results is escaped"
    )
    for header in ("content-security-policy", "x-content-type-options", "referrer-policy"):
        assert header in answer.headers
    assert "unsafe" not in answer.headers["content-security-policy"]
    for table in re.findall(r"<table>.*?</table>", html, re.DOTALL):
        assert (
            "<caption>" in table
            and 'scope="col"' in table
            and ('<th scope="row"' in table or "colspan" in table)
        )
    head = client.head(page)
    assert head.status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(client: TestClient, method: str) -> None:
    for page in ("/", "/questions", "/models/fake-optimist", "/health", "/static/style.css"):
        assert client.request(method, page).status_code == 405
    routes = [r for r in client.app.routes if hasattr(r, "methods")]  # type: ignore[attr-defined]
    assert len(routes) > 12 and all(set(r.methods) <= {"GET", "HEAD"} for r in routes)


def test_pages_leave_the_results_as_they_are(client: TestClient, served: Path) -> None:
    before = {p: p.read_bytes() for p in sorted(served.parent.rglob("*")) if p.is_file()}
    for page in PAGES:
        client.get(page)
    assert before == {p: p.read_bytes() for p in sorted(served.parent.rglob("*")) if p.is_file()}


def test_leaderboard_shows_what_is_stored(client: TestClient, served: Path) -> None:
    said = text(client.get("/numbers?metric=accuracy&method=cade&test=T2").text)
    row = store.query(
        served,
        """SELECT "value", ci_low, ci_high, n FROM metrics WHERE run_id = ? AND task = 'mcq'
           AND metric = 'accuracy' AND method = 'cade'
           AND test = 'T2' AND pillar = 'all' AND indicator = 'all'""",
        [RUN],
    ).iloc[0]
    assert (
        f"{100 * row['value']:.1f} %" in said
        and f"{100 * row['ci_low']:.1f}–{100 * row['ci_high']:.1f}" in said
        and f"{int(row['n'])}" in said
    )
    assert (
        "The numbers behind the chart (8)" in said
    )  # 2 models x 4 nights; the failing one has none
    assert "no change" in said  # fake-pessimist was found unchanged
    html = client.get("/numbers").text
    assert html.count('class="mark-line') == 2, "a chart for each model"
    dots = re.findall(r'layer_2_marks">(.*?)</g>', html)
    assert sum(part.count("<path") for part in dots) == 2 + 4, "a dot for each scored night"


def test_the_numbers_of_every_run_are_found(client: TestClient, served: Path) -> None:
    chosen = {"task": "mcq", "metric": "accuracy", "method": "cade", "test": "T2"}
    chosen |= {"pillar": "all", "indicator": "all"}
    where = " AND ".join(f"{name} = '{value}'" for name, value in chosen.items())
    stored = store.query(served, f"SELECT run_id, value FROM metrics WHERE {where}")
    want = dict(zip(stored["run_id"], stored["value"], strict=True))
    with Results(served).reading() as reader:
        asked = reader.frame("SELECT run_id, finished_at FROM runs ORDER BY finished_at")
        for some, also in ((asked[-2:], []), (asked, []), (asked[:0], list(want))):
            found = leaderboard.numbers(reader, chosen, some, also)
            values = dict(zip(found["run_id"], found["value"], strict=True))
            assert values == {run: want[run] for run in {*some["run_id"], *also} & set(want)}
    csv = pd.read_csv(io.StringIO(client.get("/numbers.csv?method=cade&test=T2").text))
    assert len(csv) == 8 and all(
        row["value"] == pytest.approx(want[row["run_id"]]) for row in csv.to_dict("records")
    )


def test_a_model_shows_what_its_run_found_as_the_report_does(client: TestClient) -> None:
    page = client.get("/models/fake-optimist").text
    findings = page.split('id="findings"')[1].split("</section>")[0]
    assert "Without any evidence" in findings and 'style="' not in page.split("<body")[1]
    assert 'id="parameters"' in page and page.count("as Figure 7") >= 1


def test_a_model_page_follows_its_run_and_opens_no_details(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(served.parent, tmp_path / "r")
    path = tmp_path / "r" / served.name
    opened = []
    monkeypatch.setattr(views, "show", lambda *given: opened.extend(given[2]))
    client = TestClient(app.create(Site(Results(path))), base_url="http://localhost")

    def findings() -> str:
        page = client.get("/models/fake-optimist")
        assert page.status_code == 200
        return page.text.split('id="findings"')[1].split("</section>")[0]

    before = findings()
    assert findings() == before and opened == []
    halved = store.query(
        path,
        "SELECT * EXCLUDE (run_id) REPLACE (value / 2 AS value) FROM numbers WHERE run_id = ?",
        [RUN],
    )
    monkeypatch.undo()
    store.replace(path, RUN, {"numbers": halved})
    assert findings() != before


def test_a_choice_that_does_not_fit_is_said_and_an_unknown_one_refused(client: TestClient) -> None:
    assert "Not available together: metric 'accuracy'" in text(
        client.get("/numbers?task=regression&metric=accuracy").text
    ).replace("&#39;", "'")
    for page, said in {
        "/numbers?metric=nonsense": "unknown metric",
        "/numbers?suite=nonsense": "unknown suite",
        "/numbers?nights=0": "nights",
        "/runs?page=x": "page",
        "/runs?model=x": "unknown model",
        "/questions?country=Atlantis": "unknown country",
        "/questions?test=T9": "unknown test",
        f"/questions/{RUN}/mcq/1?test=T9": "unknown test",
        "/questions?outcome=maybe": "unknown outcome",
        f"/questions/{RUN}/mcq/x": "item_id",
        f"/compare?a={BEFORE}&b={RUN}&cell=a/b/c": "unknown cell",
        f"/questions?q={'x' * 101}": "q ",
    }.items():
        answer = client.get(page)
        assert answer.status_code == 400 and said in text(answer.text), (
            page,
            answer.status_code,
            text(answer.text),
        )


def test_an_unknown_name_lists_names_like_it(client: TestClient) -> None:
    for page, near in {
        "/models/fake-optimst": "fake-optimist",
        "/questions?run=fake-optimist-33": RUN,
        "/nights/2026-11-18T0131": night_name(3),
        f"/compare?a=fake-optimist-x&b={RUN}": BEFORE,
    }.items():
        answer = client.get(page)
        assert answer.status_code == 404 and near in text(answer.text), page
    for page in (
        "/nope",
        f"/questions/{RUN}/mcq/99999999",
        f"/questions/{RUN}/nope/1",
        "/pictures/x/y",
        "/models/..%2F..%2Fetc",
    ):
        answer = client.get(page)
        assert (
            answer.status_code == 404
            and "Traceback" not in answer.text
            and 'lang="en"' in answer.text
        ), page


@pytest.mark.parametrize(
    "nasty",
    [
        "' OR 1=1 --",
        "%'; DROP TABLE runs; --",
        "\x00",
        "</script><script>alert(1)</script>",
        "é\ud7ff",
    ],
)
def test_no_text_of_a_visitor_becomes_sql_or_markup(client: TestClient, nasty: str) -> None:
    for name in ("run", "model", "task", "country", "q"):
        answer = client.get("/questions", params={name: nasty})
        assert answer.status_code in (200, 400, 404) and "<script>alert" not in answer.text
    assert "There is no finished run" not in client.get("/questions").text
    assert " 0 questions" in text(client.get("/questions", params={"q": nasty}).text)


def test_while_the_file_is_written_old_answers_serve_or_a_page_asks_again(
    served: Path, tmp_path: Path
) -> None:
    copytree(served.parent, tmp_path / "r")
    path = tmp_path / "r" / served.name
    held = TestClient(app.create(Site(Results(path, wait=0.1))), base_url="http://localhost")
    fresh = held.get("/models")
    of_a_model = text(held.get("/models/fake-optimist").text).split("Read-only")[0]
    with writing(path):
        assert of_a_model in text(held.get("/models/fake-optimist").text)
        stale, unknown = held.get("/models"), held.get("/runs")
        assert stale.status_code == 200
        assert (
            unknown.status_code == 503
            and unknown.headers["retry-after"] == "5"
            and 'data-retry="5"' in unknown.text
        )
        assert (
            "being written" in text(unknown.text)
            and "Traceback" not in unknown.text
            and str(tmp_path) not in unknown.text
        )
        assert held.get("/health").json()["results"] == "busy"
        path.touch()
        stale = held.get("/models")
        assert stale.status_code == 200 and "This page shows them as of" in text(stale.text)
    assert held.get("/runs").status_code == 200
    assert (
        text(held.get("/models").text).split("Read-only")[0]
        == text(fresh.text).split("Read-only")[0]
    )


def test_a_page_is_made_once_until_an_entry_changes(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    index = models.index
    monkeypatch.setattr(models, "index", lambda *of: made.append(1) or index(*of))
    entry(tmp_path, "fake-optimist", state="enabled")
    site = TestClient(app.create(Site(Results(served), tmp_path)), base_url="http://localhost")

    pages = [site.get("/models").text for _ in range(3)]
    entry(tmp_path, "fake-optimist", state="candidate", reason="on trial")
    after = site.get("/models").text

    assert len(set(pages)) == 1 and len(made) == 2
    assert "badge enabled" in pages[0]
    assert "badge candidate" in after


def test_a_new_run_is_seen_at_once(served: Path, tmp_path: Path) -> None:
    copytree(served.parent, tmp_path / "r")
    path = tmp_path / "r" / served.name
    client = TestClient(app.create(Site(Results(path))), base_url="http://localhost")
    assert "brand-new" not in client.get("/runs").text
    store.publish(
        path,
        store.RunRecord(
            run_id="brand-new-1",
            model="brand-new",
            benchmark_id="b",
            finished_at="2026-11-20T01:00:00",
        ),
        {},
    )
    assert (
        "brand-new-1" in client.get("/runs").text
        and client.get("/questions?run=brand-new-1").status_code == 200
    )
    said = text(client.get("/models/brand-new").text)
    assert "measured" in said and intended_use()["summary"] in said


def test_without_results_pages_say_so(tmp_path: Path) -> None:
    client = TestClient(
        app.create(Site(Results(tmp_path / "none.duckdb"))), base_url="http://localhost"
    )
    answer = client.get("/")
    assert (
        answer.status_code == 503
        and "No results yet" in answer.text
        and "sdgbias evaluate" in answer.text
    )
    assert client.get("/health").json()["results"] == "missing"
    (tmp_path / "none.duckdb").write_text("not a database")
    answer = client.get("/")
    assert (
        answer.status_code == 500
        and "no DuckDB file" in answer.text
        and "data-retry" not in answer.text
    )


def test_empty_results_have_pages(tmp_path: Path) -> None:
    with store.connect(tmp_path / "empty.duckdb"):
        pass
    client = TestClient(
        app.create(Site(Results(tmp_path / "empty.duckdb"))), base_url="http://localhost"
    )
    for page in ("/", "/nights", "/numbers", "/models", "/questions", "/compare", "/runs"):
        assert client.get(page).status_code == 200, page
    assert "No night has been kept yet" in client.get("/").text


def test_only_known_hosts_are_answered(served: Path) -> None:
    client = TestClient(
        app.create(Site(Results(served)), app.answers_to("127.0.0.1", ["bias.example.org"])),
        base_url="http://127.0.0.1",
    )
    for host, status in {
        "127.0.0.1:8321": 200,
        "localhost": 200,
        "[::1]:8321": 200,
        "bias.example.org": 200,
        "evil.example.org": 400,
        "127.0.0.1.evil.org": 400,
    }.items():
        answer = client.get("/runs", headers={"Host": host})  # kept, once a known host asked
        assert answer.status_code == status, host
        assert "content-security-policy" in answer.headers
    assert app.answers_to("10.0.0.7", []) == ["127.0.0.1", "localhost", "[::1]", "10.0.0.7"]
    for host, allowed in (
        ("0.0.0.0", []),
        ("::", []),
        ("127.0.0.1", ["*"]),
        ("127.0.0.1", ["http://x"]),
    ):
        with pytest.raises(UsageError, match="allowed-host"):
            app.answers_to(host, allowed)


def test_options_that_make_no_sense_are_refused_and_another_host_is_warned_of(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import uvicorn
    from typer.testing import CliRunner

    from sdgbias.cli import app as command

    started: list[str] = []
    monkeypatch.setattr(
        uvicorn.Server,
        "run",
        lambda self, sockets: started.extend(s.close() or "" for s in sockets),
    )
    base = ["serve", "--results", str(served), "--port", "0"]
    for more, said in {
        ("--host", "0.0.0.0"): "--allowed-host",
        ("--report", str(tmp_path / "none")): "no such folder",
        ("--wandb", "javascript:x"): "--wandb",
        ("--host", "203.0.113.1"): "choose another --port",
        ("--results", str(tmp_path)): "name the results file in it",
    }.items():
        done = CliRunner().invoke(command, [*base, *more])
        assert isinstance(done.exception, UsageError) and said in str(done.exception), (
            more,
            done.exception,
            done.output,
        )
    assert started == []
    done = CliRunner().invoke(
        command, [*base, "--host", "0.0.0.0", "--allowed-host", "bias.example.org"]
    )
    assert done.exit_code == 0 and "there is no login" in done.output and len(started) == 1
    done = CliRunner().invoke(
        command, ["serve", "--results", str(tmp_path / "later.duckdb"), "--port", "0"]
    )
    assert (
        "no results at" in done.output
        and "http://127.0.0.1:" in done.output
        and "no login" not in done.output
    )


def test_people_have_pages_of_their_own(served: Path, tmp_path: Path) -> None:
    copytree(served.parent, tmp_path / "r")
    path = publish_persons(tmp_path / "r" / served.name)
    client = TestClient(app.create(Site(Results(path))), base_url="http://localhost")
    said = text(client.get("/numbers?suite=people&metric=disparity").text)
    assert "+50.0 points" in said and "Disparity, Full, p1, gender:male-female, all-52" in said
    said = text(client.get("/models/unfair").text)
    assert (
        "gender: male minus female" in said
        and "Recall, direct question" in said
        and "Signature" not in said
    )
    assert " 2 questions" in text(client.get("/questions?run=unfair-0&gender=female").text)
    assert " 1 question" in text(client.get("/questions?run=unfair-0&outcome=wrong").text)
    html = client.get("/questions/unfair-0/choice/101").text
    assert (
        "Is there a nurse in the image?" in html
        and "read as nothing, declined" in text(html)
        and "help with that &lt;b&gt;" in html
    )
    assert "One run is of suite people" in text(client.get(f"/compare?a=unfair-0&b={RUN}").text)


def test_a_number_that_no_answer_gave_is_none(served: Path, tmp_path: Path) -> None:
    copytree(served.parent, tmp_path / "r")
    path = publish_persons(tmp_path / "r" / served.name)
    with store.connect(path) as con:
        con.execute("UPDATE numbers SET value = NULL, low = NULL, high = NULL")
    client = TestClient(app.create(Site(Results(path))), base_url="http://localhost")
    said = text(client.get("/numbers?suite=people&metric=disparity").text)
    assert "none no interval" in " ".join(said.split())


def test_a_report_is_shown_apart_from_these_pages(served: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<script>1</script>the report")
    (tmp_path.parent / "outside.txt").write_text("secret")
    client = TestClient(
        app.create(Site(Results(served), report=tmp_path, wandb="https://wandb.example.org/r")),
        base_url="http://localhost",
    )
    answer = client.get("/report/index.html")
    assert answer.status_code == 200 and "sandbox" in answer.headers["content-security-policy"]
    assert (
        'href="/report/index.html"' in client.get("/").text
        and 'href="https://wandb.example.org/r"' in client.get("/").text
    )
    assert (
        client.get("/report/../outside.txt").status_code == 404
        and client.get("/report/%2e%2e/outside.txt").status_code == 404
    )
