from safelight.errors import *

# Eager: the function must win over the submodule of the same name.
from safelight.probe import ImageHeader, NeedMoreBytes, probe, probe_files, probe_prefix
