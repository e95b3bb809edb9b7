"""Headless Chromium by its DevTools protocol over a pair of pipes: no driver and no WebSocket needed."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    def __init__(self, dark=False):
        self.profile = tempfile.mkdtemp(prefix="baton-chromium-")
        to_child, self.out = os.pipe()
        self.inp, from_child = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "--hide-scrollbars"]
        if dark:
            flags.append("--force-dark-mode")

        def wire():  # Chromium reads from 3 and writes to 4
            a, b = os.dup(to_child), os.dup(from_child)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.proc = subprocess.Popen([CHROMIUM, *flags, "about:blank"], preexec_fn=wire, close_fds=False,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self.rest, self.id, self.session, self.errors = b"", 0, None, []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def read(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            if not select.select([self.inp], [], [], max(0, end - time.monotonic()))[0]:
                return None
            piece = os.read(self.inp, 1 << 20)
            if not piece:
                raise AssertionError("the browser has ended")
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        m = json.loads(message)
        if m.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.errors.append(m["params"])
        if m.get("method") == "Network.requestWillBeSent":
            self.requests = getattr(self, "requests", []) + [m["params"]["request"]["url"]]
        return m

    def call(self, method, seconds=60, **params):
        self.id += 1
        message = {"id": self.id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + seconds
        while (m := self.read(end - time.monotonic())) is not None:
            if m.get("id") == self.id:
                if "error" in m:
                    raise AssertionError(f"{method}: {m['error']}")
                return m["result"]
        raise AssertionError(f"{method}: no answer in {seconds} s")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise AssertionError(f"{expression}: {r['exceptionDetails']}")
        return r["result"].get("value")

    def wait(self, expression, seconds):
        """Until the expression is true; its value."""
        end = time.monotonic() + seconds
        while not (got := self.js(expression)):
            assert time.monotonic() < end, f"not within {seconds} s: {expression}\n{self.js('document.body.innerText')}"
            time.sleep(0.1)
        return got

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def close(self):
        try:
            self.session = None
            self.call("Browser.close", seconds=10)
        except (AssertionError, OSError):
            pass
        try:
            self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        os.close(self.inp)
        os.close(self.out)
        shutil.rmtree(self.profile, ignore_errors=True)
