"""Drives a sandbox through E2B's published Python package and checks what comes back.

Run with E2B_DEBUG=true and E2B_SANDBOX_URL set to where the envd interface is served. Each check is a function whose
name says what holds; all of them run in one sandbox, each in a directory of its own. Prints one line per check and
exits with the number of those that failed.
"""

import asyncio
import io
import os
import sys
import time
import traceback
import urllib.parse
import urllib.request
import uuid

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    TimeoutException,
)

PATIENCE = 30


def raises(kind, work):
    try:
        work()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def until(check, what):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


# Commands


def a_command_tells_its_output_and_its_exit_code(box, _):
    done = box.commands.run("echo out; echo err >&2")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "out\n", "err\n"), done
    failed = raises(CommandExitException, lambda: box.commands.run("echo gone; exit 7"))
    assert (failed.exit_code, failed.stdout) == (7, "gone\n")


def a_command_runs_as_the_user_at_home_with_its_variables(box, _):
    done = box.commands.run('echo "$(id -un) $PWD $HOME $E2B_SANDBOX $WORD"', envs={"WORD": "a b"})
    assert done.stdout == "user /home/user /home/user true a b\n", done.stdout
    assert box.commands.run("id -un; pwd", user="root", cwd="/tmp").stdout == "root\n/tmp\n"
    raises(AuthenticationException, lambda: box.commands.run("true", user="nobody-of-that-name"))
    raises(InvalidArgumentException, lambda: box.commands.run("true", cwd="/no/such/directory"))


def much_output_comes_whole_and_in_order(box, _):
    done = box.commands.run("seq 200000")
    assert done.stdout == "".join(f"{n}\n" for n in range(1, 200001))


def output_comes_while_the_command_runs(box, _):
    seen = []
    handle = box.commands.run("echo first; read line; echo $line", background=True, stdin=True)
    for out, _err, _pty in handle:
        if out is None:
            continue
        seen.append(out)
        if seen == ["first\n"]:
            handle.send_stdin("second\n")
        else:
            break
    assert seen == ["first\n", "second\n"], seen


def input_can_be_streamed_and_ended(box, _):
    handle = box.commands.run("cat", background=True, stdin=True)
    box.commands.stream_input(handle.pid, [b"x" * 100_000 for _ in range(20)])
    handle.close_stdin()
    assert handle.wait().stdout == "x" * 2_000_000


def a_command_can_be_listed_connected_to_and_killed_with_its_children(box, _):
    mark = uuid.uuid4().hex
    handle = box.commands.run(f"sleep 300 & echo $! > /tmp/{mark}; wait", background=True)
    listed = {process.pid: process for process in box.commands.list()}
    assert listed[handle.pid].cmd == "/bin/bash", listed
    assert box.commands.connect(handle.pid).pid == handle.pid
    child = until(lambda: box.commands.run(f"cat /tmp/{mark} 2>/dev/null || true").stdout.strip(), "the child's id")
    assert box.commands.kill(handle.pid)
    raises(CommandExitException, handle.wait)
    # An orphan is a zombie until somebody waits for it.
    gone = lambda pid: box.commands.run(f"kill -0 {pid} 2>/dev/null || echo gone").stdout == "gone\n"
    for pid in (handle.pid, child):
        until(lambda pid=pid: gone(pid), f"{pid} is gone")
    assert not box.commands.kill(handle.pid)
    raises(NotFoundException, lambda: box.commands.connect(999_999))


def a_command_ends_at_its_timeout(box, home):
    raises(TimeoutException, lambda: box.commands.run(f"echo $$ > {home}/pid; sleep 300; true", timeout=1))
    pid = box.files.read(f"{home}/pid").strip()
    alive = lambda: box.commands.run(f"kill -0 {pid} 2>/dev/null && echo alive || true").stdout
    until(lambda: alive() == "", "the command is gone")


def the_end_of_a_command_can_be_asked_for_later(box, _):
    handle = box.commands.run("exit 5", background=True)
    raises(CommandExitException, handle.wait)
    late = raises(CommandExitException, box.commands.connect(handle.pid).wait)
    assert late.exit_code == 5


# Terminals


def a_terminal_has_a_size_and_takes_input(box, _):
    terminal = box.pty.create(PtySize(rows=24, cols=80), envs={"WORD": "inside"}, cwd="/")
    box.pty.resize(terminal.pid, PtySize(rows=33, cols=101))
    box.pty.send_stdin(terminal.pid, b"echo $WORD-$PWD; stty size; exit 3\n")
    seen = []
    ended = raises(CommandExitException, lambda: terminal.wait(on_pty=seen.append))
    text = b"".join(seen).decode()
    assert "inside-/" in text and "33 101" in text, text
    assert ended.exit_code == 3
    assert not box.pty.kill(terminal.pid)


# Files


def files_go_in_and_out_unchanged(box, home):
    every = bytes(range(256)) * 4000
    for name, write in {
        "plain": lambda path: box.files.write(path, every),
        "octets": lambda path: box.files.write(path, io.BytesIO(every), use_octet_stream=True),
        "gzip": lambda path: box.files.write(path, every, gzip=True),
    }.items():
        path = f"{home}/deep/er/{name}"
        info = write(path)
        assert (info.path, info.name) == (path, name), info
        assert bytes(box.files.read(path, format="bytes")) == every, name
        assert bytes(box.files.read(path, format="bytes", gzip=True)) == every, name
        assert b"".join(box.files.read(path, format="stream")) == every, name
    assert box.commands.run(f"stat -c '%U %a' {home}/deep/er/plain").stdout == "user 644\n"
    box.files.write(f"{home}/empty", "")
    assert box.files.read(f"{home}/empty") == ""


def odd_names_are_kept(box, home):
    for name in ["with space", "plus+and%25", "new\nline", "-dash", "ünïcode", "'quote", "a;b&c=d", "..."]:
        box.files.write(f"{home}/{name}", name)
        assert box.files.read(f"{home}/{name}") == name
    assert len(box.files.list(home)) == 8
    many = [{"path": f"{home}/many/{n}/file", "data": str(n)} for n in range(20)]
    assert [info.path for info in box.files.write_files(many)] == [entry["path"] for entry in many]
    assert box.files.read(f"{home}/many/7/file") == "7"


def part_of_a_file_can_be_read(box, home):
    box.files.write(f"{home}/file", "0123456789")
    query = urllib.parse.urlencode({"path": f"{home}/file"})
    request = urllib.request.Request(f"{box.envd_api_url}/files?{query}", headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(request) as answer:
        assert (answer.status, answer.read()) == (206, b"234")


def entries_tell_what_is_there(box, home):
    box.files.write(f"{home}/file", "four")
    box.commands.run(f"cd {home} && mkdir -m 1777 dir && ln -s file link && ln -s nowhere dangling")
    info = box.files.get_info(f"{home}/file")
    assert (info.type, info.size, info.mode, info.permissions) == (FileType.FILE, 4, 0o644, "-rw-r--r--"), info
    assert (info.owner, info.group) == ("user", "user"), info
    assert abs(time.time() - info.modified_time.timestamp()) < 600, info
    assert box.files.get_info(f"{home}/dir").permissions == "dtrwxrwxrwx"
    link = box.files.get_info(f"{home}/link")
    assert (link.symlink_target, link.permissions) == (f"{home}/file", "Lrwxrwxrwx"), link
    assert box.files.get_info(f"{home}/dangling").symlink_target == f"{home}/nowhere"
    assert [entry.name for entry in box.files.list(home)] == ["dangling", "dir", "file", "link"]
    raises(FileNotFoundException, lambda: box.files.list(f"{home}/none"))
    raises(InvalidArgumentException, lambda: box.files.list(f"{home}/file"))


def directories_are_listed_as_deep_as_asked(box, home):
    for path in ["a/b/c", "a/d"]:
        assert box.files.make_dir(f"{home}/{path}")
    assert not box.files.make_dir(f"{home}/a")
    assert [entry.path[len(home):] for entry in box.files.list(home, depth=2)] == ["/a", "/a/b", "/a/d"]
    assert [entry.path[len(home):] for entry in box.files.list(home, depth=9)] == ["/a", "/a/b", "/a/b/c", "/a/d"]


def things_are_moved_and_removed(box, home):
    box.files.write(f"{home}/one", "x")
    assert box.files.rename(f"{home}/one", f"{home}/new/two").path == f"{home}/new/two"
    assert not box.files.exists(f"{home}/one") and box.files.read(f"{home}/new/two") == "x"
    raises(FileNotFoundException, lambda: box.files.rename(f"{home}/one", f"{home}/three"))
    box.files.remove(f"{home}/new")
    box.files.remove(f"{home}/new")
    assert not box.files.exists(f"{home}/new")


def metadata_stays_with_a_file(box, home):
    assert box.files.write(f"{home}/file", "x", metadata={"author": "me"}).metadata == {"author": "me"}
    assert box.files.rename(f"{home}/file", f"{home}/moved").metadata == {"author": "me"}
    assert box.files.list(home)[0].metadata == {"author": "me"}
    box.files.write(f"{home}/moved", "y")
    assert box.files.get_info(f"{home}/moved").metadata is None


# Watching


def changes_are_told_to_whoever_asks(box, home):
    handle = box.files.watch_dir(home, recursive=True, include_entry=True)
    box.files.write(f"{home}/sub/file", "x")
    told = handle.get_new_events()
    kinds = {(event.name, event.type) for event in told}
    assert ("sub", FilesystemEventType.CREATE) in kinds, told
    assert ("sub/file", FilesystemEventType.WRITE) in kinds or ("sub/file", FilesystemEventType.CREATE) in kinds, told
    assert any(event.entry and event.entry.path == f"{home}/sub/file" for event in told), told
    box.files.remove(f"{home}/sub/file")
    assert ("sub/file", FilesystemEventType.REMOVE) in {(e.name, e.type) for e in handle.get_new_events()}
    handle.stop()
    raises(SandboxException, handle.get_new_events)
    raises(FileNotFoundException, lambda: box.files.watch_dir(f"{home}/none"))


async def changes_come_as_a_stream(box, home):
    told = asyncio.Queue()
    handle = await box.files.watch_dir(home, on_event=told.put_nowait)
    await box.files.write(f"{home}/file", "x")
    seen = []
    while len(seen) < 3:
        seen.append(await asyncio.wait_for(told.get(), PATIENCE))
    assert [event.type for event in seen] == [
        FilesystemEventType.CREATE,
        FilesystemEventType.CHMOD,
        FilesystemEventType.WRITE,
    ], seen
    await handle.stop()


async def many_commands_run_at_once(box, _):
    done = await asyncio.gather(*(box.commands.run(f"sleep 0.1; echo {n}") for n in range(40)))
    assert [one.stdout for one in done] == [f"{n}\n" for n in range(40)]


def the_machine_tells_its_measures(box, _):
    with urllib.request.urlopen(f"{box.envd_api_url}/metrics") as answer:
        assert b'"mem_total":' in answer.read()
    assert box.is_running()


SYNC = [
    a_command_tells_its_output_and_its_exit_code,
    a_command_runs_as_the_user_at_home_with_its_variables,
    much_output_comes_whole_and_in_order,
    output_comes_while_the_command_runs,
    input_can_be_streamed_and_ended,
    a_command_can_be_listed_connected_to_and_killed_with_its_children,
    a_command_ends_at_its_timeout,
    the_end_of_a_command_can_be_asked_for_later,
    a_terminal_has_a_size_and_takes_input,
    files_go_in_and_out_unchanged,
    odd_names_are_kept,
    part_of_a_file_can_be_read,
    entries_tell_what_is_there,
    directories_are_listed_as_deep_as_asked,
    things_are_moved_and_removed,
    metadata_stays_with_a_file,
    changes_are_told_to_whoever_asks,
    the_machine_tells_its_measures,
]
ASYNC = [changes_come_as_a_stream, many_commands_run_at_once]


def report(check, outcome):
    print(f"{'ok    ' if outcome is None else 'FAILED'} {check.__name__}", flush=True)
    if outcome is not None:
        traceback.print_exception(outcome)
    return outcome is not None


async def run_async():
    failed = 0
    box = await AsyncSandbox.create()
    for check in ASYNC:
        home = f"/home/user/{check.__name__}"
        await box.files.make_dir(home)
        outcome = None
        try:
            await asyncio.wait_for(check(box, home), 2 * PATIENCE)
        except Exception as error:
            outcome = error
        failed += report(check, outcome)
    return failed


def main():
    failed = 0
    box = Sandbox.create()
    for check in SYNC:
        home = f"/home/user/{check.__name__}"
        box.files.make_dir(home)
        outcome = None
        try:
            check(box, home)
        except Exception as error:
            outcome = error
        failed += report(check, outcome)
    failed += asyncio.run(run_async())
    print(f"{len(SYNC) + len(ASYNC) - failed} of {len(SYNC) + len(ASYNC)} checks hold")
    sys.stdout.flush()
    # Without the interpreter's own end: the SDK's native threads may still run then, and what becomes of them is no
    # matter of ours.
    os._exit(min(failed, 100))


if __name__ == "__main__":
    main()
