#!/usr/bin/env python3
"""Records real commands in a terminal, and draws the recording as an SVG picture.

    terminal.py record SESSION.json DIRECTORY BAY < COMMANDS    runs each line of COMMANDS in DIRECTORY, with BAY as `bay`
    terminal.py draw SESSION.json SESSION.svg                   draws what was recorded

A picture shows only what the commands printed. A test draws it again and compares, so it cannot be edited by hand.
"""
import json
import os
import pty
import re
import subprocess
import sys
import time
from html import escape

COLUMNS = 112
LINE = 18
LETTER = 7.8
PADDING = 18
BAR = 30
# Most seconds and bytes of one command.
PATIENCE = 300
OUTPUT = 64 * 1024

COLOURS = {
    "30": "#6e7681", "31": "#ff7b72", "32": "#56d364", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff",
    "36": "#76e3ea", "37": "#c9d1d9", "90": "#8b949e", "91": "#ffa198", "92": "#7ee787", "93": "#f2cc60",
    "94": "#a5d6ff", "95": "#e2c5ff", "96": "#b3f0ff", "97": "#ffffff",
}
# Colours and weights; everything else that moves a cursor is applied or dropped.
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")


def run(command, directory, environment):
    """Runs one command on a terminal of its own. Returns what it printed."""
    shell = ["bash", "-c", f"stty cols {COLUMNS} rows 40; {command}"]
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execvpe(shell[0], shell, environment)
    printed, until = b"", time.monotonic() + PATIENCE
    while len(printed) < OUTPUT and time.monotonic() < until:
        try:
            read = os.read(master, 4096)
        except OSError:
            break
        if not read:
            break
        printed += read
    os.close(master)
    os.waitpid(pid, 0)
    return printed.decode("utf-8", "replace")


def record(session, directory, bay):
    path = os.path.dirname(os.path.abspath(bay)) + ":" + os.environ["PATH"]
    environment = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    version = subprocess.run([bay, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    steps = []
    for command in (line.rstrip("\n") for line in sys.stdin):
        if not command.strip():
            continue
        printed = run(command, directory, environment)
        steps.append({"command": command, "printed": printed})
        sys.stdout.write(f"$ {command}\n{printed}")
    with open(session, "w", encoding="utf-8") as file:
        json.dump({"version": version, "steps": steps}, file, indent=1, ensure_ascii=False)
        file.write("\n")


def screen(printed):
    """The lines that a terminal shows at the end, each a list of (text, style)."""
    lines, style, column = [[]], "", 0

    def put(character):
        nonlocal column
        if column == COLUMNS:
            lines.append([])
            column = 0
        line = lines[-1]
        while len(line) <= column:
            line.append((" ", ""))
        line[column] = (character, style)
        column += 1

    at = 0
    while at < len(printed):
        found = SEQUENCE.match(printed, at)
        if found:
            at = found.end()
            if found.group(2) == "m":
                style = styled(style, found.group(1))
            elif found.group(2) == "K":
                del lines[-1][column:]
            continue
        character = printed[at]
        at += 1
        if character == "\n":
            lines.append([])
            column = 0
        elif character == "\r":
            column = 0
        elif character >= " ":
            put(character)
    if not lines[-1]:
        lines.pop()
    return lines


def styled(style, codes):
    parts = dict(part.split(":", 1) for part in style.split(";") if part)
    for code in (codes or "0").split(";"):
        if code in ("", "0"):
            parts = {}
        elif code == "1":
            parts["font-weight"] = "600"
        elif code == "2":
            parts["opacity"] = ".65"
        elif code in ("22",):
            parts.pop("font-weight", None)
            parts.pop("opacity", None)
        elif code == "39":
            parts.pop("fill", None)
        elif code in COLOURS:
            parts["fill"] = COLOURS[code]
    return ";".join(f"{key}:{value}" for key, value in sorted(parts.items()))


def spans(line):
    """Neighbours of one style become one span."""
    out, text, style = [], "", ""
    for character, of in line + [("", None)]:
        if of != style:
            if text:
                given = f' style="{style}"' if style else ""
                out.append(f"<tspan{given}>{escape(text)}</tspan>")
            text, style = "", of
        text += character
    return "".join(out)


def draw(session, picture):
    with open(session, encoding="utf-8") as file:
        steps = json.load(file)["steps"]
    lines = []
    for step in steps:
        prompt = [("$", "fill:#56d364"), (" ", "")] + [(c, "font-weight:600") for c in step["command"]]
        lines += [prompt, *screen(step["printed"]), []]
    lines.pop()
    wide = round(COLUMNS * LETTER + 2 * PADDING)
    high = BAR + LINE * len(lines) + 2 * PADDING
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
        'aria-label="A terminal session with bay">',
        "<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "fill:#c9d1d9;white-space:pre}</style>",
        f'<rect width="{wide}" height="{high}" rx="9" fill="#0d1117"/>',
    ]
    for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        out.append(f'<circle cx="{PADDING + 4 + 20 * number}" cy="20" r="6" fill="{colour}"/>')
    for number, line in enumerate(lines):
        if line:
            y = BAR + PADDING + LINE * number + 12
            long = f' textLength="{len(line) * LETTER:.1f}"'
            out.append(f'<text xml:space="preserve" x="{PADDING}" y="{y}"{long}>{spans(line)}</text>')
    out.append("</svg>")
    with open(picture, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "record":
        record(*sys.argv[2:])
    elif len(sys.argv) == 4 and sys.argv[1] == "draw":
        draw(*sys.argv[2:])
    else:
        sys.exit(__doc__)
