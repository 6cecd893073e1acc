"""A training loop small enough for a laptop: one neuron learns to distinguish two clouds of points."""

import math
import random
from collections.abc import Iterator


class Neuron:
    """Logistic regression on points of the plane, by stochastic gradient descent."""

    def __init__(self, seed: int, batch_size: int = 8) -> None:
        self._random = random.Random(seed)  # noqa: S311 - points for a demonstration, not secrets
        self._batch_size = max(1, min(batch_size, 256))
        self.weights = [0.0, 0.0, 0.0]
        self.loss = math.log(2.0)

    def step(self) -> float:
        """Learn from one batch; returns its mean loss."""
        total = 0.0
        for x, y, label in self._points(self._batch_size):
            guess = self.guess(x, y)
            total -= math.log(max(guess if label else 1.0 - guess, 1e-12))
            error = guess - label
            for index, value in enumerate((x, y, 1.0)):
                self.weights[index] -= 0.1 * error * value
        self.loss = total / self._batch_size
        return self.loss

    def guess(self, x: float, y: float) -> float:
        """The probability that a point belongs to the second cloud."""
        a, b, c = self.weights
        return 1.0 / (1.0 + math.exp(-max(-50.0, min(50.0, a * x + b * y + c))))

    def accuracy(self, points: int = 200) -> float:
        """The fraction of new points that is classified correctly."""
        right = sum((self.guess(x, y) > 0.5) == bool(label) for x, y, label in self._points(points))
        return right / points

    def _points(self, count: int) -> Iterator[tuple[float, float, int]]:
        for _ in range(count):
            label = self._random.randrange(2)
            middle = 1.0 if label else -1.0
            yield self._random.gauss(middle, 1.0), self._random.gauss(middle, 1.0), label
