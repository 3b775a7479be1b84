// Included by AITER's host launchers, which take nothing from it. Left empty, so that one that does fails to compile.
#pragma once
