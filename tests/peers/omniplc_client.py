"""What omniplc, a client that nobody of this project wrote, does with the simulated serial module.

usage: omniplc_client.py 4C|3C|1C PATH STATION
"""
import sys

from omniplc import MelsecMcSerialClient

frame, path, station = sys.argv[1], sys.argv[2], int(sys.argv[3])
plc = MelsecMcSerialClient(frame=frame, station_number=station)
plc.configure_serial(path, 115200, parity="N")
assert plc.connect(), "not connected"


def value(place, kind):
    good, found = plc.read(place, kind)
    assert good, (place, plc.last_error)
    return found


words = [value("D10", "ushort"), value("D11", "ushort")]
bits = [value(f"M{n}", "bool") for n in (2, 3, 4)]
assert plc.write("D20", "ushort", 0x1010), plc.last_error
assert plc.write("D21", "ushort", 7), plc.last_error
assert plc.write("M30", "bool", True), plc.last_error
assert plc.write("M31", "bool", False), plc.last_error
refused = "done" if plc.write("D9000", "ushort", 1) else "refused"
plc.disconnect()
print(words, bits, refused)
