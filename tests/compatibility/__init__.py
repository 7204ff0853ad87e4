"""Files that released versions wrote, which every later version loads and runs."""
