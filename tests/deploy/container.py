"""A machine of its own to install Baton on: systemd booted as PID 1 in namespaces (systemd-nspawn), with
the host's /usr read-only, what `make install` made in /usr/local, and a network of nothing but loopback.
Needs root."""
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLONE_NEWNET = 0x40000000
MASKED = ("systemd-networkd", "systemd-resolved", "systemd-timesyncd", "getty@tty1", "console-getty",
          "systemd-logind", "apt-daily.timer", "apt-daily-upgrade.timer")
TARGET = """[Unit]
Requires=sysinit.target dbus.socket
After=sysinit.target dbus.socket
AllowIsolate=yes
"""


def why_not():
    """What is missing for a container here, or None."""
    if os.geteuid() != 0:
        return "booting systemd needs root"
    if not shutil.which("systemd-nspawn"):
        return "no systemd-nspawn (Debian's package systemd-container)"
    return None


class Container:
    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="baton-boot-"))
        self.root = self.dir / "root"
        self.init = self.nspawn = self.outside = None

    def install(self):
        """`make install`, as OPERATIONS says, with /usr/local and /etc of the container."""
        build = os.environ.get("B", "build")
        subprocess.run(["make", "-s", "NOSETUP=1", f"B={build}", *(["CUDA=no"] if os.environ.get("CUDA") == "no" else []),
                        "install", f"DESTDIR={self.dir}/inst"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(self.dir / "inst/etc", self.root / "etc", dirs_exist_ok=True)

    def make_root(self):
        r = self.root
        for d in ("usr", "etc/systemd/system", "var/lib", "var/log/journal", "run", "tmp", "proc", "sys", "dev",
                  "root"):
            (r / d).mkdir(parents=True, exist_ok=True)
        (r / "tmp").chmod(0o1777)
        for d in ("bin", "sbin", "lib", "lib64"):
            (r / d).symlink_to(f"usr/{d}")
        for f in ("passwd", "group", "nsswitch.conf", "ld.so.conf", "ld.so.conf.d", "ld.so.cache", "pam.d",
                  "dbus-1", "hosts"):
            src = Path("/etc", f)
            if src.is_dir():
                shutil.copytree(src, r / "etc" / f, symlinks=True)
            elif src.exists():
                shutil.copy2(src, r / "etc" / f)
        (r / "etc/shadow").write_text("root:*:19000:0:99999:7:::\n")
        (r / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")  # not a first boot
        (r / "etc/os-release").write_text("ID=test\nNAME=test\n")
        for u in MASKED:
            name = u if "." in u else f"{u}.service"
            (r / "etc/systemd/system" / name).symlink_to("/dev/null")
        (r / "etc/systemd/system/testbed.target").write_text(TARGET)

    def boot(self, seconds=60):
        log = open(self.dir / "boot.log", "wb")
        self.nspawn = subprocess.Popen(
            ["systemd-nspawn", "-q", "-D", str(self.root), "--bind-ro=/usr",
             f"--bind-ro={self.dir}/inst/usr/local:/usr/local", "--register=no", "--keep-unit",
             "--private-network", "--kill-signal=SIGRTMIN+3", "--console=pipe", "--boot",
             "systemd.unit=testbed.target"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.nspawn.poll() is not None:
                break
            children = Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children").read_text().split()
            if children:
                self.init = int(children[0])
                state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
                if state in ("running", "degraded"):
                    return
            time.sleep(0.1)
        raise AssertionError("systemd did not come up:\n" + (self.dir / "boot.log").read_text(errors="replace")[-3000:])

    def run(self, *command, check=True, timeout=180):
        p = subprocess.run(["nsenter", "-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "--", *command],
                           capture_output=True, text=True, timeout=timeout)
        if check and p.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: rc {p.returncode}\n{p.stdout}\n{p.stderr}\n{self.journal()}")
        return p

    def shell(self, script, **kw):
        return self.run("/bin/sh", "-euc", script, **kw)

    def journal(self, *args):
        return self.run("journalctl", "--no-pager", "-n", "60", "-o", "short-monotonic", *args, check=False).stdout

    def show(self, unit, prop):
        return self.run("systemctl", "show", "-P", prop, unit).stdout.strip()

    def pid_outside(self, unit):
        """The unit's main process, by the number that the host knows it by."""
        inside = self.show(unit, "MainPID")
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                line = next(s for s in status.read_text().splitlines() if s.startswith("NSpid:"))
                same = os.readlink(status.parent / "ns/pid") == os.readlink(f"/proc/{self.init}/ns/pid")
            except (OSError, StopIteration):
                continue
            if same and line.split()[-1] == inside:
                return int(status.parent.name)
        raise AssertionError(f"{unit} has no process")

    def enter_network(self):
        """From here on this thread, and those it starts, are in the container's network."""
        self.outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        with open(f"/proc/{self.init}/ns/net", "rb") as f:
            self.set_network(f.fileno())

    def leave_network(self):
        if self.outside is not None:
            self.set_network(self.outside)
            os.close(self.outside)
            self.outside = None

    @staticmethod
    def set_network(fd):
        if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def close(self):
        if self.nspawn and self.nspawn.poll() is None:
            if self.init:
                os.kill(self.init, signal.SIGRTMIN + 3)
            try:
                self.nspawn.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.nspawn.pid, signal.SIGKILL)
                self.nspawn.wait(30)
        shutil.rmtree(self.dir, ignore_errors=True)
