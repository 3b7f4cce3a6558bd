"""What a customer wants to buy."""


class Basket:
    """Items, each with its price and how many of it."""

    def __init__(self, items=[]):
        self.items = items

    def add(self, name, price, count=1):
        """Put something in."""
        self.items.append((name, price, count))

    def total(self):
        """What it costs."""
        return sum(price for _, price, _ in self.items)
