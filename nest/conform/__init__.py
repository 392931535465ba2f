"""The contract of a solver, checked on small problems with known optima.

For planners of other packages as well as for the project's own::

    from nest.conform import conform

    def test_contract():
        assert conform("mine").failed == ()
"""

from nest.conform.checks import CHECKS
from nest.conform.problems import references
from nest.conform.records import Check, Report, State
from nest.conform.run import conform

__all__ = ["CHECKS", "Check", "Report", "State", "conform", "references"]
