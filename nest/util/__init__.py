"""What other rooms use: texts, quantities, versions, signals, stored files."""
