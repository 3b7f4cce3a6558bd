import unittest

from till.basket import Basket
from till.money import shown


class TestTill(unittest.TestCase):
    def test_one_item(self):
        basket = Basket([])
        basket.add("tea", 350)
        self.assertEqual(basket.total(), 350)

    def test_shown(self):
        self.assertEqual(shown(1250), "12.50")
