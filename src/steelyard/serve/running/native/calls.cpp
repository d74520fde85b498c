// The products alone, as they are compiled for narrower processors.
#include "calls.h"
