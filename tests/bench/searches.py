"""Of searches through all states of a program on a machine, for bounds to be compared with."""

import collections


def closure(states, next_states):
    """`states` and all that `next_states(state)` leads to from them."""
    found, ahead = set(states), collections.deque(states)
    while ahead:
        for state in next_states(ahead.popleft()):
            if state not in found:
                found.add(state)
                ahead.append(state)
    return found
