"""The CP-SAT formulation."""
