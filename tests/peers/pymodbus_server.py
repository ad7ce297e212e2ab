#!/usr/bin/env python3
"""A Modbus server that nobody of this project wrote: pymodbus 3.16 or later.

    pymodbus_server.py [--address 127.0.0.1] [--port 0] [--unit 1] [--registers 2048]
                       [--rtu]                            RTU frames over TCP
                       [--serial PATH]                    RTU frames over a serial port (needs pyserial)
                       [--value holding:110=4711 ...]     stands before anybody can connect

Standard output, one line each:
    listening ADDRESS PORT
    write FUNCTION START VALUE,VALUE,...     every write it was asked for and takes (05, 06, 0F, 10)
    value AREA OFFSET VALUE                  the answer to `get`
    ok | error TEXT                          the answer to anything else
Standard input, one line each:
    set coil|discrete|holding|input OFFSET VALUE
    get coil|discrete|holding|input OFFSET
    quit                                     or the end of the input
"""

import argparse
import asyncio
import sys

from pymodbus import FramerType
from pymodbus.server import ModbusSerialServer, ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

READ = {"coil": 1, "discrete": 2, "holding": 3, "input": 4}
WRITES = {5, 6, 15, 16}
MACHINE_WRITE = {"coil": 15, "discrete": 2, "holding": 16, "input": 4}


def say(*words):
    print(*words, flush=True)


class Peer:
    def __init__(self, args):
        self.unit = args.unit
        self.inside = False  # a `set` from standard input is no write from the network
        areas = {area: [0] * args.registers for area in READ}
        for given in args.value:
            place, value = given.split("=")
            area, offset = place.split(":")
            areas[area][int(offset)] = int(value)
        bits = lambda area: [
            SimData(0, values=[bool(v) for v in areas[area]], datatype=DataType.BITS)
        ]
        words = lambda area: [SimData(0, values=areas[area], datatype=DataType.REGISTERS)]
        device = SimDevice(
            id=args.unit,
            simdata=(bits("coil"), bits("discrete"), words("holding"), words("input")),
            action=self.on_access,
        )
        if args.serial:
            self.server = ModbusSerialServer(
                device, framer=FramerType.RTU, port=args.serial, baudrate=115200, parity="N"
            )
        else:
            framer = FramerType.RTU if args.rtu else FramerType.SOCKET
            self.server = ModbusTcpServer(
                device, framer=framer, address=(args.address, args.port)
            )

    async def on_access(self, function, _start, address, count, registers, values):
        if function in WRITES and values is not None and not self.inside:
            say("write", f"{function:02X}", address, ",".join(str(int(v)) for v in values))
        return None

    async def obey(self, line):
        words = line.split()
        if len(words) == 3 and words[0] == "get":
            area, offset = words[1], int(words[2])
            values = await self.server.async_getValues(self.unit, READ[area], offset, 1)
            say("value", area, offset, int(values[0]))
        elif len(words) == 4 and words[0] == "set":
            area, offset, value = words[1], int(words[2]), int(words[3])
            values = [bool(value)] if area in ("coil", "discrete") else [value]
            self.inside = True
            try:
                await self.server.async_setValues(self.unit, MACHINE_WRITE[area], offset, values)
            finally:
                self.inside = False
            say("ok")
        else:
            say("error expected: set AREA OFFSET VALUE, get AREA OFFSET, or quit")


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--unit", type=int, default=1)
    parser.add_argument("--rtu", action="store_true")
    parser.add_argument("--serial", metavar="PATH")
    parser.add_argument("--registers", type=int, default=2048)
    parser.add_argument("--value", action="append", default=[], metavar="AREA:OFFSET=VALUE")
    args = parser.parse_args()
    peer = Peer(args)
    await peer.server.serve_forever(background=True)
    if args.serial:
        say("listening", args.serial, 0)
    else:
        say("listening", *peer.server.transport.sockets[0].getsockname()[:2])

    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := (await reader.readline()).decode():
        if line.strip() == "quit":
            break
        try:
            await peer.obey(line)
        except (KeyError, ValueError, TypeError) as error:
            say("error", repr(error))
    await peer.server.shutdown()


asyncio.run(main())
