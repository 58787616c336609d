"""The shell around the rules: ports, engine, worker, relay, invoker, process. Imports no driver."""
