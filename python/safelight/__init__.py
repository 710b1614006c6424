from safelight.errors import *
