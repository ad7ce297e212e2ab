#!/usr/bin/env python3
"""Runs the Structured Text program of docs/mailbox.md scan by scan, against the mailbox's rules.

Owns: the proof that the documented PLC program does what the document says.
May call: nothing but the document; the small part of Structured Text that it uses is translated here.
Never: repair the program: what is not understood ends the run.
"""
import pathlib
import re

DOCUMENT = pathlib.Path(__file__).parent.parent / "docs" / "mailbox.md"
TOKEN = re.compile(
    r"\s*(IF\b.*?\bTHEN|ELSIF\b.*?\bTHEN|ELSE\b|END_IF;|FOR\b.*?\bDO|END_FOR;"
    r"|CASE\b.*?\bOF|END_CASE;|\d+:(?!=)|[^;]*?;)",
    re.S,
)
EXTERNAL = {"SM402": "BOOL", "SM410": "BOOL", "X20": "BOOL", "Y20": "BOOL"}


def fit(value, kind):
    """A value as its type holds it; a WORD that does not fit is a mistake of the program."""
    if kind == "BOOL":
        return bool(value)
    if kind == "WORD":
        assert 0 <= value <= 0xFFFF, value
        return value
    bits = {"INT": 16, "DINT": 32}[kind]
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


FUNCTIONS = {
    "fit": fit,
    "SHR": lambda a, n: a >> n,
    "SHL": lambda a, n: (a << n) & 0xFFFFFFFF,
    "WORD_TO_DWORD": lambda a: a,
    "DWORD_TO_WORD": lambda a: fit(a, "WORD"),
    "DWORD_TO_DINT": lambda a: fit(a, "DINT"),
    "DINT_TO_DWORD": lambda a: a & 0xFFFFFFFF,
    "WORD_TO_INT": lambda a: fit(a, "INT"),
    "INT_TO_WORD": lambda a: a & 0xFFFF,
}


class Plc:
    """The translated program with its memory."""

    def __init__(self, text):
        text = re.sub(r"\(\*.*?\*\)", "", text, flags=re.S)
        self.kinds, self.memory, self.locals = dict(EXTERNAL), {}, {}
        for constant, section in re.findall(r"VAR_GLOBAL( CONSTANT)?(.*?)END_VAR", text, re.S):
            for name, last, kind, value in re.findall(
                r"(\w+)\s*:\s*(?:ARRAY\[0\.\.(\d+)\] OF )?(\w+)(?:\s*:=\s*(\d+))?\s*;", section
            ):
                assert bool(constant) == bool(value), name
                self.kinds[name] = kind
                self.memory[name] = [0] * (int(last) + 1) if last else int(value or 0)
        for name in EXTERNAL:
            self.memory[name] = False
        text = re.sub(r"VAR_GLOBAL.*?END_VAR", "", text, flags=re.S)
        units = re.findall(
            r"(FUNCTION_BLOCK|FUNCTION|PROGRAM) (\w+)(?: : (\w+))?\n(.*?)END_\1\b", text, re.S
        )
        self.code = dict(FUNCTIONS, G=self.memory, A=self.locals)
        for _, name, kind, body in units:
            exec(self.translate(name, kind, body), self.code)

    def translate(self, unit, kind, body):
        inputs, local = [], {unit: kind} if kind else {}
        for is_input, section in re.findall(r"VAR(_INPUT)?\b(.*?)END_VAR", body, re.S):
            for names, of in re.findall(r"([\w, ]+?)\s*:\s*(\w+)\s*;", section):
                for name in names.replace(" ", "").split(","):
                    local[name] = of
                    inputs += [name] if is_input else []
        body = re.sub(r"VAR(_INPUT)?\b.*?END_VAR", "", body, flags=re.S)
        self.locals[unit] = {name: 0 for name in local}
        lines = [f"def {unit}({', '.join(inputs)}):", f"    L = A['{unit}']"]
        lines += [f"    L['{name}'] = {name}" for name in inputs]
        depth = 1
        for token in TOKEN.findall(body):
            token = " ".join(token.split())
            depth -= token.startswith(("ELSIF ", "ELSE", "END_")) or token[0].isdigit()
            statement = self.statement(token, local)
            if statement:
                lines.append("    " * depth + statement)
            if statement.endswith(":"):
                depth += 1
                lines.append("    " * depth + "pass")
        return "\n".join([*lines, f"    return L.get('{unit}')"])

    def statement(self, token, local):
        of = lambda text: self.expression(text, local)
        if token.startswith("END_"):
            return ""
        if token == "ELSE":
            return "else:"
        if match := re.fullmatch(r"(IF|ELSIF) (.*) THEN", token):
            return f"{'if' if match[1] == 'IF' else 'elif'} {of(match[2])}:"
        if match := re.fullmatch(r"FOR (\w+) := (.*) TO (.*?)( BY -1)? DO", token):
            end, step = ("- 1", -1) if match[4] else ("+ 1", 1)
            return f"for L['{match[1]}'] in range({of(match[2])}, {of(match[3])} {end}, {step}):"
        if match := re.fullmatch(r"CASE (.*) OF", token):
            # The selector is read once; each label is an `elif` of this `if`.
            return f"if (selector := {of(match[1])}) is None:"
        if match := re.fullmatch(r"(\d+):", token):
            return f"elif selector == {match[1]}:"
        if match := re.fullmatch(r"(\w+)\((.*)\);", token):
            arguments = [part.split(":=") for part in match[2].split(",")]
            given = ", ".join(f"{name.strip()}={of(value)}" for name, value in arguments)
            return f"{local[match[1]]}({given})"
        target, value = re.fullmatch(r"(.*?) := (.*);", token).groups()
        name = re.match(r"\w+", target)[0]
        kind = local.get(name) or self.kinds[name]
        return f"{of(target)} = fit({of(value)}, '{kind}')"

    def expression(self, text, local):
        text = re.sub(r"16#([0-9A-F]+)", r"0x\1", text).replace("<>", "!=")
        text = re.sub(r"(?<![<>!:=])=(?!=)", "==", text)
        text = re.sub(r"AND (0x[0-9A-F]+)(?=\)|$)", r"& \1", text)
        text = re.sub(r"\bXOR\b", "^", text)
        text = re.sub(r"\bOR\b", "|" if "SHL(" in text else "or", text)
        text = re.sub(r"\b(AND|NOT|TRUE|FALSE)\b", lambda m: {
            "AND": "and", "NOT": "not", "TRUE": "True", "FALSE": "False"}[m[0]], text)

        def place(match):
            name = match[0]
            room = "L" if name in local else "G" if name in self.memory else None
            return f"{room}['{name}']" if room else name

        return re.sub(r"(?<![\w'])[A-Za-z_]\w*(?![\w'])", place, text)


def crc(words):
    value = 0xFFFF
    for octet in (part for word in words for part in (word >> 8, word & 0xFF)):
        value ^= octet
        for _ in range(8):
            value = (value >> 1) ^ 0xA001 if value & 1 else value >> 1
    return value


class Machine:
    """A PLC with the program in it, and an ejector whose strokes are counted outside the program."""

    def __init__(self):
        document = DOCUMENT.read_text(encoding="utf-8")
        self.plc = Plc(document.split("```iecst\n")[1].split("```")[0])
        self.memory, self.strokes, self.scans = self.plc.memory, 0, 0
        self.memory.update(McClosed=True, McVersion=7)
        self.scan(first=True)

    def scan(self, count=1, first=False):
        for _ in range(count):
            self.scans += 1
            self.memory.update(SM402=first, SM410=bool(self.scans % 2))
            self.plc.code["Mailbox"]()
            before = self.memory["Y20"]
            self.plc.code["Machine"]()
            self.strokes += self.memory["Y20"] and not before
            self.memory["X20"] = self.memory["Y20"]

    def power_cycle(self):
        """What is not latched is lost."""
        self.memory.update(MbRunning=False, MbStart=False, MbFinished=False, Y20=False)
        self.plc.locals["Machine"]["step"] = 0
        self.scan(first=True)

    def write(self, request, opcode=3, epoch=1, version=0xFFFF, ticks=0, layout=1, damage=0):
        words = [layout, epoch >> 16, epoch & 0xFFFF, opcode, request >> 16, request & 0xFFFF]
        words += [0] * 9 + [version, ticks]
        self.memory["CMD"][:18] = words + [crc(words) ^ damage]

    def commit(self, request, **block):
        self.write(request, **block)
        self.memory["CMD"][18] = request & 0xFFFF
        self.scan(10)

    def status(self):
        """State, result, last accepted, and the newest entry of the ring as id, result."""
        words = self.memory["STA"]
        assert words[32] == crc(words[:32])
        return words[6], words[7], words[4] << 16 | words[5], (words[16] << 16 | words[17], words[18])

    def word_pair(self, at):
        return self.memory["STA"][at] << 16 | self.memory["STA"][at + 1]


def expect(found, expected):
    assert found == expected, f"found {found}, expected {expected}"


def main():
    m = Machine()
    m.commit(100)
    expect((m.status(), m.strokes), ((3, 0, 100, (100, 0)), 1))
    # A copy, and a copy after another commit was seen: answered again, not carried out again.
    m.commit(100)
    m.memory["CMD"][18] = 5
    m.scan(10)
    m.commit(100)
    expect((m.status(), m.strokes, m.word_pair(10)), ((3, 0, 100, (100, 0)), 1, 1))
    # A commit that is not the block's: somebody else's, or the block's write was lost.
    m.write(101)
    m.memory["CMD"][18] = 6
    m.scan(10)
    expect((m.status(), m.strokes), ((3, 0, 100, (100, 0)), 1))
    # An older id, a damaged block, another layout, an older epoch: refused, and no id is used up.
    for request, block, result in [
        (99, {}, 1), (101, {"damage": 1}, 2), (102, {"layout": 2}, 6), (103, {"epoch": 0}, 7),
    ]:
        m.commit(request, **block)
        expect((m.status(), m.strokes), ((4, result, 100, (100, 0)), 1))
    # Another version, an open interlock, an unknown opcode: refused, on record.
    m.commit(104, version=8)
    expect(m.status(), (4, 3, 104, (104, 3)))
    m.commit(105, version=7)
    expect((m.status(), m.strokes), ((3, 0, 105, (105, 0)), 2))
    m.memory["McClosed"] = False
    m.commit(106)
    expect(m.status(), (4, 4, 106, (106, 4)))
    # Burning an id works in every state of the machine, and has no effect.
    m.commit(107, opcode=0)
    expect((m.status(), m.word_pair(8), m.word_pair(10)), ((3, 0, 107, (107, 0)), 107, 2))
    m.memory["McClosed"] = True
    m.commit(106)
    expect((m.status()[2:], m.strokes), ((107, (107, 0)), 2))
    m.commit(108, opcode=9)
    expect(m.status(), (4, 5, 108, (108, 5)))
    # Validity runs from when the block was seen; after a start nobody knows, so it is over.
    for request, wait, restart, result in [(109, 8, False, 0), (110, 40, False, 8), (111, 2, True, 8)]:
        m.write(request, ticks=10)
        m.scan(wait)
        if restart:
            m.power_cycle()
        m.commit(request, ticks=10)
        expect(m.status()[3], (request, result))
    expect(m.word_pair(1), 2)
    # Power lost while executing: neither done nor on record, and never begun anew.
    strokes = m.strokes
    m.write(112)
    m.memory["CMD"][18] = 112
    m.scan()
    expect((m.status()[0], m.strokes), (2, strokes + 1))
    m.power_cycle()
    m.scan(10)
    expect((m.status(), m.strokes, m.word_pair(1)), ((0, 0, 112, (111, 8)), strokes + 1, 3))
    # A commit that comes while another executes waits for it.
    m.write(113)
    m.memory["CMD"][18] = 113
    m.scan()
    m.commit(114)
    expect([m.word_pair(16), m.word_pair(20)], [114, 113])
    # Numbers wrap.
    m.memory["MbAccepted"] = -2
    m.commit(0xFFFFFFFF)
    m.commit(0x00010003)
    expect((m.status()[3], m.word_pair(20)), ((0x00010003, 0), 0xFFFFFFFF))
    print("the PLC program of docs/mailbox.md keeps its rules")


if __name__ == "__main__":
    main()
