"""hvd-timeline: what it finds in timelines of known content, and the page that it makes."""

import json
import shutil

import pytest

from hvd_keras.diagnostics import timeline_cli
from hvd_keras.diagnostics.timeline import path_of_rank
from hvd_keras.diagnostics.timeline_analysis import analyse
from hvd_keras.diagnostics.timeline_files import TimelineError, read_timelines
from hvd_keras.diagnostics.timeline_warnings import warnings_of

STEP_US, STEPS = 100_000.0, 11
# In each step, from its begin: the first bucket is hidden behind compute, the second is waited for.
BUCKETS = ((20_000.0, 10_000.0, 8 << 20), (80_000.0, 10_000.0, 4 << 20))
LATE_US = 12_000.0  # of rank 1


def identity(rank, size=2, **fields):
    args = {
        "format": 1,
        "part": 1,
        "rank": rank,
        "size": size,
        "local_rank": rank,
        "cross_rank": 0,
        "process": 100 + rank,
        "host": "node",
        "realtime_minus_ts_ns": 0,
        **fields,
    }
    return {"name": "hvd_keras_timeline", "ph": "M", "ts": 0, "pid": rank, "tid": 0, "args": args}


def metadata(name, **args):
    return {"name": name, "ph": "M", "ts": 0, "pid": 0, "tid": 0, "args": args}


def piece(name, rank, track, begin, length, **args):
    return {
        "name": name,
        "ph": "X",
        "pid": rank,
        "tid": track,
        "ts": begin,
        "dur": length,
        "args": args,
    }


def call(name, rank, occurrence, begin, agreed, length, size=2, last=1, **args):
    """A collective that takes 3/4 of its time from agreement to end to be executed."""
    end = agreed + length
    started = agreed + length / 4
    common = {"occurrence": occurrence, "process_set": 0, "bytes": args.get("bytes", 4)}
    return [
        piece(name, rank, 10, begin, end - begin, collective="ALLREDUCE", **{**common, **args}),
        piece("NEGOTIATE_ALLREDUCE", rank, 10, begin, agreed - begin, last_rank=last, ranks=size),
        piece("QUEUE", rank, 10, agreed, started - agreed),
        piece("SHM_ALLREDUCE", rank, 10, started, end - started, bytes=common["bytes"]),
    ]


def job(rank, size=2, late=1, steps=STEPS, memcpy=8e9, **fields):
    """A rank's timeline; rank `late` calls everything LATE_US after the others."""
    events = [identity(rank, size, **fields), metadata("hvd_keras_memcpy", bytes_per_second=memcpy)]
    last_rank = -1 if late is None else late
    for step in range(steps):
        begin = 1e6 + step * STEP_US
        own = LATE_US if rank == late else 0.0
        for number, (at, length, size_bytes) in enumerate(BUCKETS):
            agreed = begin + at + LATE_US
            events += call(
                f"gradients.{number}",
                rank,
                step,
                begin + at + own,
                agreed,
                length,
                size,
                last_rank,
                bytes=size_bytes,
            )
        last = begin + BUCKETS[-1][0]
        events.append(piece("EXPOSED", rank, 2, last + own, LATE_US - own + BUCKETS[-1][1]))
        events.append(piece("STEP", rank, 1, begin, STEP_US, number=step))
    return events


def write(path, events):
    path.write_text(json.dumps(events))
    return path


@pytest.fixture
def two(tmp_path):
    """The files of a job of two ranks; that of rank 0."""
    write(tmp_path / "t.rank-1.json", job(1))
    return write(tmp_path / "t.json", job(0))


def test_shares_lateness_and_costs(two):
    analysis = analyse(read_timelines([two]))
    assert analysis.ranks == [0, 1] and analysis.has_steps and analysis.memcpy == 8e9
    assert len(analysis.step_times[0]) == STEPS
    assert analysis.step_times[1][1] == pytest.approx((0.1, 0.1))
    first, second = analysis.shares
    # Without the first step, which is left out.
    assert (first.steps, first.total) == (STEPS - 1, pytest.approx(1.0))
    assert first.exposed == pytest.approx((STEPS - 1) * 0.022)
    assert first.hidden == pytest.approx((STEPS - 1) * 0.022)
    assert second.exposed == pytest.approx((STEPS - 1) * 0.010)
    assert second.compute == pytest.approx(1.0 - (STEPS - 1) * 0.010)
    assert (first.late, first.last_in) == (0.0, 0.0)
    assert second.late == pytest.approx(0.012) and second.last_in == 1.0
    large, small = sorted(analysis.costs, key=lambda cost: -cost.bytes)
    assert (large.name, large.calls, large.transport) == ("gradients.0", STEPS, "SHM")
    assert large.executed == pytest.approx(0.0075) and large.queued == pytest.approx(0.0025)
    assert large.waited == pytest.approx(0.006)  # rank 1 never waits
    assert large.bandwidth == pytest.approx((8 << 20) / 0.0075)
    assert (large.last_rank, large.last_share) == (1, 1.0)
    assert large.total == pytest.approx(STEPS * 0.016)
    assert small.bytes == 4 << 20


def test_warnings_are_plain_words(two):
    timelines = read_timelines([two])
    first, *rest = warnings_of(analyse(timelines), timelines)
    assert first.startswith(
        "Rank 1 arrives last in 100% of the steps, 12.0 ms late, 12% of a step."
    )
    # 8 MiB in 7.5 ms are 1.1 GB/s, 14 % of memcpy.
    assert any("gradients.0 moves 1.12 GB/s, 14% of what memcpy reaches" in text for text in rest)


def test_nothing_to_warn_of(tmp_path):
    quick = [job(rank, late=None, memcpy=1e9) for rank in (0, 1)]
    for rank, events in enumerate(quick):
        for event in events:
            if event["name"] == "EXPOSED":
                event["dur"] = 1000.0
        write(tmp_path / f"rank-{rank}.json", events)
    timelines = read_timelines([tmp_path])
    assert warnings_of(analyse(timelines), timelines) == []


def test_clocks_of_hosts_are_made_one(tmp_path):
    ahead_us = 5_000_000.0
    events = job(1, host="other")
    for event in events:
        if event["ph"] == "X":
            event["ts"] += ahead_us
    events.append(metadata("hvd_keras_clock", offset_ns=int(-ahead_us * 1000), error_ns=50_000))
    paths = [write(tmp_path / "a.json", job(0)), write(tmp_path / "b.json", events)]
    timelines = read_timelines(paths, beside=False)
    assert timelines[1].clock_error_us == 50
    assert analyse(timelines).shares[1].late == pytest.approx(0.012)


def test_what_is_missing_is_said(tmp_path):
    events = job(0, size=4, part=3)
    events.append(metadata("hvd_keras_dropped", records=17))
    events.append(metadata("hvd_keras_clock", offset_ns=0, error_ns=-1))
    events += call("odd", 0, 0, 1e6, 1e6, 10.0, failed="Aborted")
    timelines = read_timelines([write(tmp_path / "x.json", events)])
    text = "\n".join(warnings_of(analyse(timelines), timelines))
    assert "The files of 3 of 4 ranks are not here (1, 2, 3)" in text
    assert "Rank 0 has lost 17 records" in text
    assert "The clock of rank 0 (host node) could not be compared" in text
    assert "the first 2 parts of its timeline are gone" in text
    assert "odd ended with an error (Aborted), 1 times" in text


def test_files_beside_are_of_the_same_job_or_left_out(tmp_path):
    main = write(tmp_path / "t.json", job(0, part=2))
    write(tmp_path / "t.part-1.json", [*job(0, part=1, steps=1)])
    write(tmp_path / "t.rank-1.json", job(1))
    write(tmp_path / "t.rank-2.json", job(2, size=3))  # of an earlier, larger job
    write(tmp_path / "t.part-7.json", job(0, part=7, process=5))  # of an earlier one
    (tmp_path / "t.notes.json").write_text("{}")
    write(tmp_path / "u.rank-1.json", job(1))
    timelines = read_timelines([main])
    names = [[path.name for path in timeline.paths] for timeline in timelines]
    assert names == [["t.part-1.json", "t.json"], ["t.rank-1.json"]]
    assert [t.rank for t in read_timelines([main], beside=False)] == [0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("", "is empty"),
        ("not json", "is not JSON"),
        ("42", "no list of events"),
        ('[{"name": "x", "ph": "X"}]', "has 1 events, but does not say which rank"),
        ('[{"name": "hvd_keras_timeline", "args": {"rank": 1}}]', "does not say its part"),
        (json.dumps([identity(0), identity(1)]), "as hvd-timeline merge makes it"),
        (json.dumps([identity(0)]), "neither a step nor a collective"),
    ],
)
def test_wrong_files(tmp_path, capsys, content, message):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    output = tmp_path / "report.html"
    assert timeline_cli.main(["report", str(path), "-o", str(output)]) == 1
    error = capsys.readouterr().err
    assert message in error and error.startswith("hvd-timeline: ")
    assert str(path) in error or "neither" in error
    assert not output.exists()


def test_files_of_two_jobs(tmp_path):
    a, b = write(tmp_path / "a.json", job(0)), write(tmp_path / "b.json", job(0))
    with pytest.raises(TimelineError, match="are both of rank 0"):
        read_timelines([a, b])
    c = write(tmp_path / "c.json", job(1, size=3))
    with pytest.raises(TimelineError, match="is of a job of 2 ranks, .*c.json of one of 3"):
        read_timelines([a, c])
    with pytest.raises(TimelineError, match="a folder without a timeline"):
        (tmp_path / "empty").mkdir()
        read_timelines([tmp_path / "empty"])


def test_a_file_that_was_cut_is_read_up_to_there(tmp_path):
    path = tmp_path / "x.json"
    lines = ",\n".join(json.dumps(event) for event in job(0))
    path.write_text(f"[\n{lines[:-40]}")
    timeline = read_timelines([path])[0]
    assert len(timeline.events) == len(job(0)) - 1
    assert "was cut in the middle" in timeline.notes[0]


def test_merge_puts_all_on_one_clock(two, tmp_path, capsys):
    output = tmp_path / "all.json"
    assert timeline_cli.main(["merge", str(two), "-o", str(output)]) == 0
    assert "2 of 2 ranks, 2 files" in capsys.readouterr().out
    merged = json.loads(output.read_text())
    assert len(merged) == len(job(0)) + len(job(1))
    assert {event["pid"] for event in merged if event["ph"] == "X"} == {0, 1}
    # It lies beside the files it was made of, and does no harm there.
    assert len(read_timelines([tmp_path])) == 2


def test_where_ranks_write(tmp_path):
    path = str(tmp_path / "x.json")
    assert path_of_rank(path, 0) == tmp_path / "x.json"
    assert path_of_rank(path, 3) == tmp_path / "x.rank-3.json"
    assert path_of_rank(str(tmp_path / "x.trace"), 3) == tmp_path / "x.trace.rank-3.json"
    assert path_of_rank(str(tmp_path), 0) == tmp_path / "rank-0.json"
    assert path_of_rank(str(tmp_path / "new") + "/", 2) == tmp_path / "new" / "rank-2.json"


@pytest.fixture
def browser():
    """A real one, without a window and without a network."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromium-driver are not installed: apt-get install both")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,2600",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    instance = webdriver.Chrome(options=options, service=service)
    try:
        instance.set_page_load_timeout(90)
        yield instance
    finally:
        instance.quit()


def test_the_page_in_a_browser(two, tmp_path, browser):
    pytest.importorskip("plotly", reason="plotly is not installed")
    page = tmp_path / "report.html"
    assert timeline_cli.main(["report", str(two), "-o", str(page)]) == 0
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []
    script = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    loaded = browser.execute_script(script)
    assert [name for name in loaded if not name.startswith("data:")] == []
    text = browser.find_element("tag name", "body").text
    assert "Rank 1 arrives last in 100% of the steps, 12.0 ms late" in text
    plots = browser.find_elements("css selector", ".js-plotly-plot")
    assert len(plots) == 4
    drawn = {
        "Step time over the run": ".scatterlayer .trace path.js-line",
        "Where the time goes": ".barlayer .point path",
        "Who comes late": ".barlayer .point path",
        "Bandwidth of the allreduces": ".barlayer .point path",
    }
    marks = [
        len(plot.find_elements("css selector", selector))
        for plot, selector in zip(plots, drawn.values(), strict=True)
    ]
    assert marks == [2, 6, 2, 2]
    for title, plot in zip(drawn, plots, strict=True):
        assert title in text
        assert colors(browser, plot.screenshot_as_base64) > 3, title
    rows = browser.find_elements("css selector", "tbody tr td:first-child")
    assert [row.text for row in rows] == ["gradients.0", "gradients.1"]


def colors(browser, picture):
    """How many colours a picture (PNG in base 64) has, by a coarse scale; the browser counts."""
    return browser.execute_async_script(
        """
        const [data, done] = arguments;
        const image = new Image();
        image.onload = () => {
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [image.width, image.height];
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            const bytes = context.getImageData(0, 0, image.width, image.height).data;
            const found = new Set();
            for (let i = 0; i < bytes.length; i += 4) {
                found.add((bytes[i] >> 5) * 64 + (bytes[i + 1] >> 5) * 8 + (bytes[i + 2] >> 5));
            }
            done(found.size);
        };
        image.src = "data:image/png;base64," + data;
        """,
        picture,
    )
