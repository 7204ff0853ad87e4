"""npusim beside other runtimes: what is shared by all of them, with npusim\x27s own cases."""
