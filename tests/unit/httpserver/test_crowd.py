"""Which connection is closed when one more comes, also if many come before any closing is reported."""

from gpushare.httpserver.connections import Crowd


class Held:
    def __init__(self, *, is_answered=False):
        self.is_answered = is_answered
        self.hung_up_on = 0

    def hang_up(self):
        self.hung_up_on += 1


def test_of_many_that_come_at_once_each_takes_the_place_of_another():
    crowd, held = Crowd(4), [Held() for _ in range(20)]
    for one in held:
        crowd.enter(one, "peer")
    assert [one.hung_up_on for one in held] == [1] * 16 + [0] * 4
    for one in held:
        crowd.leave(one, "peer")
    again = [Held() for _ in range(4)]
    for one in again:
        crowd.enter(one, "other")
    assert not any(one.hung_up_on for one in again)


def test_who_finds_all_being_answered_is_turned_away_and_takes_no_place():
    crowd, held = Crowd(2), [Held(is_answered=True), Held(is_answered=True)]
    for one in held:
        crowd.enter(one, "peer")
    late = Held()
    crowd.enter(late, "late")
    assert late.hung_up_on == 1
    crowd.leave(late, "late")
    held[0].is_answered = False
    last = Held()
    crowd.enter(last, "late")
    assert (held[0].hung_up_on, held[1].hung_up_on, last.hung_up_on) == (1, 0, 0)
