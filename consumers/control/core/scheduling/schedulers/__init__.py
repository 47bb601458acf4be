"""One module a policy: ``plan(state, scene) -> (state, plan)``, or ``plan(scene)`` where there is nothing to remember.

In order of priority: basic, drain-capture, move-table, rebalance, balance; the first that yields tasks has the tick.
"""
