"""A trainer's process, as TRL has it: sends transformers' models of the folders that it reads, one a line.

    python trainer.py URL

Each is loaded, its parameters go one by one, and a line says that the server serves them.
"""

from __future__ import annotations

import sys


def main() -> None:
    from kv_connector.weights.trl import KvMessengerWeightTransfer
    from transformers import AutoModelForCausalLM

    transfer = KvMessengerWeightTransfer(sys.argv[1:])
    transfer.init_weight_transfer()
    for line in sys.stdin:
        model = AutoModelForCausalLM.from_pretrained(line.strip())
        transfer.send_weights(model.named_parameters())
        print("served", flush=True)
    transfer.destroy()


if __name__ == "__main__":
    main()
