/* The version of libdeflate, which only its header tells. */

#include <libdeflate.h>

const char *safelight_deflate_version(void) { return LIBDEFLATE_VERSION_STRING; }
