"""One typed request per question, shared by Python and the command line.

A request is a frozen record. Each of its fields is a setting: a value with a
reader, a default, a unit and a help text (:mod:`nest.requests.settings`). The
functions of :mod:`nest.api` take the fields as keyword arguments; the
commands of :mod:`nest.cli` have an option for each field.
"""
