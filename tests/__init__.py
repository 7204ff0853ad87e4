"""All Python tests, and the models they run (`tests.models`)."""
