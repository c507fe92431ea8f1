"""From a cubin to a launch: arrays, streams, the driver. Nothing loads before it is asked for."""
