// Stands in for the platform's header: metal-cpp asks for no condition that holds here.
#pragma once
