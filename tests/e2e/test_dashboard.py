"""The dashboard: its feed by itself, and (make check-long) the page in headless Chromium. Screenshots stay
where BATON_SHOTS says."""
import hashlib
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from conftest import SLOW, TINY, Cluster, alive, running, wait_for
from test_thinking import TEMPLATE


@pytest.fixture(scope="module")
def tiny():
    yield from running(Cluster("--threads", "1", model=TINY / "llama-q8_0.gguf", decode=2))


def feed(cluster, key=None):
    req = urllib.request.Request(cluster.url + "/debug/live", headers={"Authorization": f"Bearer {key}"} if key else {})
    return urllib.request.urlopen(req, timeout=20 * SLOW)


def frame(response):
    while not (line := response.readline()).startswith(b"data: "):
        assert line, "the feed ended"
    return json.loads(line[6:])


def test_page_is_self_contained(tiny):
    with urllib.request.urlopen(tiny.url + "/", timeout=10 * SLOW) as r:
        text, policy = r.read().decode(), r.headers["Content-Security-Policy"]
    assert r.headers["Content-Type"] == "text/html; charset=utf-8" and len(text.encode()) < 64 << 10
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    assert "innerHTML" not in text, "what workers and models are called must not become markup"


def test_frames_follow_the_cluster(tiny):
    """Counters grow with an answer, a running request is listed with its workers, the dead is down."""
    with feed(tiny) as f:
        first = frame(f)
        assert {w["name"] for w in first["workers"]} == {"prefilld-1", "decoded-1", "decoded-2"}
        assert all(w["state"] == "up" and w["kv_free"] == w["kv_blocks"] > 0 for w in first["workers"])
        body = {"prompt": [5] * 40, "max_tokens": 2000, "ignore_eos": True}
        instances = {w["instance"] for w in first["workers"]}
        stop, asked = threading.Event(), []

        def work():  # an answer may be shorter than the time between two frames
            while not stop.is_set():
                asked.append(tiny.post("/v1/completions", body)[0])

        ask = threading.Thread(target=work)
        ask.start()
        try:
            wait_for(lambda: any(r["state"] == "decode" and r["decode"] in instances and r["prompt_tokens"] == 40
                                 for r in frame(f)["requests"]), 60)
        finally:
            stop.set()
            ask.join()
        now = frame(f)
        while now["tokens"] < first["tokens"] + 2000 * len(asked):
            now = frame(f)
        assert set(asked) == {200} and sum(now["ttft"]["counts"]) == sum(first["ttft"]["counts"]) + len(asked)
        assert len(now["itl"]["counts"]) == len(now["itl"]["bounds"]) + 1
        by_name = {w["name"]: w for w in now["workers"]}
        assert by_name["prefilld-1"]["sent"] > 0 and by_name["prefilld-1"]["steps"]
        os.kill(tiny.pid("decoded-2"), signal.SIGKILL)
        wait_for(lambda: "down" in {w["state"] for w in frame(f)["workers"]}, 20)
        tiny.local("start", "decoded-2")
        wait_for(lambda: {w["state"] for w in frame(f)["workers"]} == {"up"}, 20)


def test_feed_is_bounded_and_needs_a_key(tmp_path):
    (tmp_path / "keys").write_text(f"k:{hashlib.sha256(b'secret').hexdigest()}\n")
    cluster = Cluster("--threads", "1", model=TINY / "llama-q8_0.gguf", sets=[f"routerd.api_key_file={tmp_path}/keys"])
    try:
        cluster.start()
        assert urllib.request.urlopen(cluster.url + "/", timeout=10 * SLOW).status == 200
        with pytest.raises(urllib.error.HTTPError) as e:
            feed(cluster)
        assert e.value.code == 401
        feeds = [feed(cluster, "secret") for _ in range(32)]
        with pytest.raises(urllib.error.HTTPError) as e:
            feed(cluster, "secret")
        assert e.value.code == 503
        frame(feeds[31])
        for f in feeds[:-1]:
            f.close()

        def free():
            try:
                feed(cluster, "secret").close()
                return True
            except urllib.error.HTTPError:
                return False

        wait_for(free, 10)
        pid = cluster.pid("routerd")
        os.kill(pid, signal.SIGTERM)  # a feed does not hold up the end
        wait_for(lambda: not alive(pid), 10)
    finally:
        cluster.stop()


@pytest.mark.long
@pytest.mark.skipif(not CHROMIUM, reason="no chromium (Debian's package chromium)")
def test_in_a_browser(tmp_path):
    """Chats, shows thinking and answer apart, sees a worker die and come back; nothing is loaded from
    elsewhere, and no width needs to be scrolled sideways."""
    template = tmp_path / "thinking.jinja"
    template.write_text(TEMPLATE)
    shots = Path(os.environ.get("BATON_SHOTS", tmp_path))
    cluster = Cluster(decode=2, sets=[f"routerd.chat_template={template}", "routerd.reasoning_efforts=low:12"])
    browser = None
    try:
        cluster.start()
        browser = Browser()
        browser.size(1600, 1000)
        browser.open(cluster.url + "/")
        browser.wait("document.querySelectorAll('.worker.up').length === 3", 30 * SLOW)
        # KV on its way is a line between two workers: an observer, for a line stays no longer than a frame.
        browser.js("window.wired = 0; new MutationObserver(() => wired += document.querySelectorAll('#wires path').length)"
                   ".observe(document.getElementById('wires'), {childList: true})")
        assert browser.js("!document.getElementById('idle').hidden")
        asking = threading.Thread(target=cluster.post, args=("/v1/completions", {
            "prompt": "Once upon a time " * 20, "max_tokens": 400, "ignore_eos": True}), kwargs={"timeout": 120})
        asking.start()
        browser.wait("wired > 0", 30 * SLOW)
        assert browser.js("document.getElementById('idle').hidden")
        asking.join()
        browser.wait("!document.getElementById('idle').hidden", 30 * SLOW)
        # so is a running sequence that moves, from the worker that had it
        moving = threading.Thread(target=cluster.post, args=("/v1/completions", {
            "prompt": "Once upon a time " * 20, "max_tokens": 1200, "ignore_eos": True}), kwargs={"timeout": 120})
        moving.start()
        source = cluster.when_busy("decoded-1", "decoded-2")
        target = {"decoded-1": "decoded-2", "decoded-2": "decoded-1"}[source]
        cells = f"[...document.querySelectorAll('#requests tr')].some(r => r.textContent.includes('{source}'))"
        browser.wait(cells, 30 * SLOW)  # the page has seen where it was
        drain = f"{cluster.admin}/admin/workers/{source}/drain"
        urllib.request.urlopen(urllib.request.Request(drain, method="POST"), timeout=10 * SLOW).close()
        browser.wait(f"document.getElementById('transfers').textContent.includes('{source} \u2192 {target}')", 30 * SLOW)
        urllib.request.urlopen(urllib.request.Request(drain, method="DELETE"), timeout=10 * SLOW).close()
        moving.join()
        browser.wait("document.querySelectorAll('.worker.up').length === 3", 30 * SLOW)
        browser.js("document.getElementById('effort').value = 'low'")
        # A sampled answer may be nothing but thinking: then it is asked again.
        answers = "[...document.querySelectorAll('.answer')]"
        good = f"{answers}.find(a => a.querySelector('.thought').textContent.length > 5 && " \
               "a.querySelector('.content').textContent.length > 2)"
        for _ in range(10):
            browser.js("document.getElementById('ask').value = 'Name a city.'; document.getElementById('send').click()")
            browser.wait(f"{answers}.length && (!!{good} || {answers}.every(a => a.matches('.done')))", 60 * SLOW)
            if browser.js(f"!!{good}"):
                break
        shown = browser.js(f"{good}.innerText")
        assert "think>" not in shown and not browser.js(f"{good}.querySelector('.think').hidden")
        browser.wait("document.querySelectorAll('#requests tr').length >= 1 || document.querySelector('.answer.done')", 30 * SLOW)
        browser.screenshot(shots / "wide-light.png")
        os.kill(cluster.pid("decoded-2"), signal.SIGKILL)
        browser.wait("document.querySelectorAll('.worker.down').length === 1", 30 * SLOW)
        assert browser.js("document.getElementById('state').textContent") == "degraded"
        red = browser.js("getComputedStyle(document.querySelector('.worker.down')).borderLeftColor")
        green = browser.js("getComputedStyle(document.querySelector('.worker.up')).borderLeftColor")
        assert red != green
        browser.screenshot(shots / "wide-down.png")
        cluster.local("start", "decoded-2")
        browser.wait("document.querySelectorAll('.worker.up').length === 3", 30 * SLOW)
        for width, scheme in ((1600, "dark"), (360, "light"), (360, "dark")):
            browser.size(width, 800)
            browser.scheme(scheme)
            browser.wait(f"innerWidth === {width} && document.querySelectorAll('.worker.up').length === 3", 30 * SLOW)
            browser.js("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
            assert browser.js("(c => c.viewBox.baseVal.width === c.clientWidth)(document.getElementById('c-ttft'))"), "charts are stretched"
            assert browser.js("document.documentElement.scrollWidth") <= width
            assert browser.js("(t => t.scrollWidth <= t.clientWidth)(document.querySelector('.scroll'))"), "the list is cut"
            assert browser.js("document.getElementById('send').offsetTop === document.getElementById('ask').offsetTop")
            browser.screenshot(shots / f"{width}-{scheme}.png")
        assert all(url.startswith((cluster.url, "data:")) for url in browser.requests), browser.requests
        assert browser.errors == []
    finally:
        if browser:
            browser.close()
        cluster.stop()
