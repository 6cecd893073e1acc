"""Which connection is closed when another arrives, also if many arrive before any closing is reported."""

from gpushare.httpserver.connections import Crowd


class Connection:
    def __init__(self, *, is_answered=False):
        self.is_answered = is_answered
        self.hang_ups = 0

    def hang_up(self):
        self.hang_ups += 1


def test_of_many_concurrent_arrivals_each_replaces_another_connection():
    crowd, connections = Crowd(4), [Connection() for _ in range(20)]
    for one in connections:
        crowd.enter(one, "peer")
    assert [one.hang_ups for one in connections] == [1] * 16 + [0] * 4
    for one in connections:
        crowd.leave(one, "peer")
    later = [Connection() for _ in range(4)]
    for one in later:
        crowd.enter(one, "other")
    assert not any(one.hang_ups for one in later)


def test_a_connection_is_rejected_while_all_others_are_being_answered():
    crowd, connections = Crowd(2), [Connection(is_answered=True), Connection(is_answered=True)]
    for one in connections:
        crowd.enter(one, "peer")
    late = Connection()
    crowd.enter(late, "late")
    assert late.hang_ups == 1
    crowd.leave(late, "late")
    connections[0].is_answered = False
    last = Connection()
    crowd.enter(last, "late")
    assert (connections[0].hang_ups, connections[1].hang_ups, last.hang_ups) == (1, 0, 0)
