"""Acts: owns Operation, the execution record of one side effect."""
