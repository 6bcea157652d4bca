"""The command line, `python -m hadron.sim`.

main       what each way of calling it does
options    what may be given, and which go together
processes  seeds in processes of their own
summary    what many runs amount to
coverage   lines that run under the simulator alone
"""
