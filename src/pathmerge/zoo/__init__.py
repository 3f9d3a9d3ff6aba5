"""The room of trained models that come with the package: weights, and a card for each that says what it is."""
