"""What pymcprotocol, a client that nobody of this project wrote, does with the simulated CPU.

usage: pymcprotocol_client.py 3e|4e binary|ascii PORT
"""
import sys

import pymcprotocol

frame, code, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
plc = pymcprotocol.Type4E() if frame == "4e" else pymcprotocol.Type3E()
plc.setaccessopt(commtype=code)
plc.connect("127.0.0.1", port)
words = plc.batchread_wordunits(headdevice="D10", readsize=2)
bits = plc.batchread_bitunits(headdevice="M2", readsize=3)
some, doubles = plc.randomread(word_devices=["D10"], dword_devices=["D10"])
plc.batchwrite_wordunits(headdevice="D20", values=[7, -1])
plc.batchwrite_bitunits(headdevice="M30", values=[1, 0, 1])
plc.randomwrite(
    word_devices=["D40"], word_values=[5], dword_devices=["D42"], dword_values=[0x12345678]
)
plc.randomwrite_bitunits(bit_devices=["M50"], values=[1])
model, number = plc.read_cputype()
plc.remote_stop()
(state,) = plc.batchread_wordunits(headdevice="SD203", readsize=1)
plc.close()
print(words, bits, some, doubles, model, number, state)
