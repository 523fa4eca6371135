"""Random traffic with faults through both halves of SGLang's backend, whose schedulers are imitated: no waits, one
thread, a clock of its own.
"""
